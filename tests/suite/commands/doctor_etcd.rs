//! `lockrun doctor` on etcd: what would make locks unsafe or slow is found, and named.

use serde_json::json;

use super::doctor::{call, doctor, finds};
use crate::support::etcd::Member;
use crate::support::{Etcd, LeaseServer};

// A cluster of three survives the loss of one member, if the URL names all.
#[test]
fn members_that_the_url_does_not_name() {
    let etcd = Etcd::of(3);
    let [first, second, third] = etcd.members() else { panic!("three members") };
    let all = doctor(&Etcd::url_of(&[first, second, third])).exited(0);
    finds(&all, "ok", &["3 members that vote, of which 2 are needed"]);
    assert!(!all.stdout().contains("the URL names"), "{all}");
    for members in [&[first][..], &[first, first, first]] {
        finds(&doctor(&Etcd::url_of(members)).exited(0), "note", &["the URL names 1 of the 3 members"]);
    }
    // One that does not answer may be any.
    second.kill();
    let two = doctor(&Etcd::url_of(&[first, second])).exited(1);
    finds(&two, "warn", &["cannot reach", "as long as a majority"]);
    finds(&two, "note", &["the URL names 2 of the 3 members"]);
}

// One member in the URL was wiped, and started as a cluster of its own: the two know nothing of each other's locks.
#[test]
fn members_of_different_clusters() {
    let (etcd, other) = (Etcd::of(1), Etcd::of(1));
    let url = Etcd::url_of(&[&etcd.members()[0], &other.members()[0]]);
    finds(&doctor(&url).exited(2), "fail", &["the members in the URL belong to 2 clusters"]);
}

// Learners do not vote, so they do not count.
#[test]
fn learners_do_not_count() {
    let etcd = Etcd::of(1);
    etcd.ask("/v3/cluster/member/add", &json!({ "peerURLs": ["http://127.0.0.1:1"], "isLearner": true }));
    finds(&doctor(&etcd.url_at(etcd.port())).exited(0), "note", &["the cluster has one member that votes"]);
}

// What a member answers by itself says nothing about how quickly a lock is acquired: a majority must confirm it.
#[test]
fn an_answer_is_one_that_a_majority_confirms() {
    let etcd = Etcd::of(3);
    let (leader, members) = (etcd.leader(), etcd.members());
    let others: Vec<&Member> = members.iter().filter(|member| !std::ptr::eq(*member, leader)).collect();
    for member in &others {
        member.pause();
    }
    let output = call(&Etcd::url_of(&[leader])).args(["--store-timeout", "1s"]).run().exited(69);
    assert!(!output.stdout().contains("an answer takes"), "{output}");
}

// The members' data differ, as after a fault of etcd's: two runs can hold one lock.
#[test]
fn members_whose_data_differ() {
    let (etcd, healthy) = (Etcd::diverged(), Etcd::of(2));
    let url = |etcd: &Etcd| Etcd::url_of(&etcd.members().iter().collect::<Vec<_>>());
    finds(&doctor(&url(&etcd)).exited(2), "fail", &["have different data at revision", "hashkv"]);
    finds(&doctor(&url(&healthy)), "ok", &["the members have the same data at revision"]);
}
