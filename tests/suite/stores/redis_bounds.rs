//! Answers of a Redis, a Sentinel or a node that are longer than any that lockrun asks for: bounded in time and memory.

use std::fmt::Write as _;

use nix::sys::resource::Resource;

use crate::support::birth::Birth;
use crate::support::fake::{Fake, Manner};
use crate::support::{Lockrun, Output};

/// The most memory that a call may take; most of that is its code and its threads' stacks.
const MEMORY: u64 = 128 << 20;

/// Runs a call within that memory.
fn within_memory(call: Lockrun) -> Output {
    call.birth(Birth { limits: vec![(Resource::RLIMIT_AS, MEMORY, MEMORY)], ..Birth::default() }).run()
}

/// Returns bytes that live as long as the test.
fn kept(bytes: Vec<u8>) -> &'static [u8] {
    Box::leak(bytes.into_boxed_slice())
}

/// Returns a bulk string of the protocol.
fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

// "A hostile cluster node": each of many announces a list of nodes that does not end, and sends it.
#[test]
fn a_list_of_nodes_that_does_not_end() {
    let head = "$2000000000\r\naaa 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-16383";
    let nodes: Vec<Fake> = (0..20).map(|_| Fake::start(Manner::Endless(head.as_bytes(), b" 9"))).collect();
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let call = Lockrun::at(&format!("redis+cluster://{}", hosts.join(","))).key("k").command(["echo", "ran"]);
    let output = within_memory(call).exited(69).printed("");
    output.said("no node of the cluster answers").said("longer than anything that lockrun asks for");
}

/// Runs a call on a cluster of many nodes, each of which answers with this list.
fn on_nodes_that_list(list: &str) {
    let answer = kept(bulk(list));
    let nodes: Vec<Fake> = (0..20).map(|_| Fake::start(Manner::Answer(answer))).collect();
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let call = Lockrun::at(&format!("redis+cluster://{}", hosts.join(","))).key("k").command(["echo", "ran"]);
    within_memory(call).exited(69).printed("");
}

// The same of lists that end: of one node with very many slots, and of as many nodes as there is room for.
#[test]
fn a_list_that_is_long() {
    let slots = " 9".repeat(20_000_000);
    on_nodes_that_list(&format!("aaa 127.0.0.1:1@2 myself,master - 0 0 1 connected{slots}\n"));
    let mut list = "aaa 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-16383\n".to_owned();
    for number in 0..12_000 {
        writeln!(list, "{number:040} 127.0.0.1:1@2 master - 0 0 1 connected 1").expect("there is memory");
    }
    on_nodes_that_list(&list);
}

// "An ordinary answer needs at most about 1 MB": those of a Redis and of Sentinels, too.
#[test]
fn an_ordinary_answer_that_does_not_end() {
    for head in [&b"$2000000\r\n"[..], b"*1000000000\r\n"] {
        let fake = Fake::start(Manner::Flood(head));
        let sentinels = format!("redis+sentinel://127.0.0.1:{}/locks", fake.port());
        for url in [&fake.url(), &sentinels] {
            let call = Lockrun::at(url).key("k").command(["echo", "ran"]);
            within_memory(call).exited(69).printed("").said("longer than anything that lockrun asks for");
        }
    }
}

// "A listing has a limit in bytes, named when it is reached": also where there is always another page of keys.
#[test]
fn a_server_that_always_has_another_page_of_keys() {
    let names: Vec<Vec<u8>> = (0..2000).map(|number| bulk(&format!("lockrun:{{key-{number}}}:fence"))).collect();
    let page = [&b"*2\r\n$1\r\n7\r\n*2000\r\n"[..], &names.concat()].concat();
    let fake = Fake::start(Manner::Answer(kept(page)));
    for words in [&["status"][..], &["status", "--json"], &["prune", "--older-than", "1d"]] {
        let call = Lockrun::bare().args(words).args(["--store", &fake.url()]);
        within_memory(call).exited(69).printed("").said("lists more than 128 MiB of locks");
    }
}

// "What failed, and what to do": an answer of something that is no Redis, and one of a Redis that is longer than any.
#[test]
fn an_answer_that_is_of_no_redis_or_too_long() {
    let html = Fake::start(Manner::Answer(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"));
    let run = |fake: &Fake| Lockrun::at(&fake.url()).key("k").command(["echo", "ran"]).run().exited(69).printed("");
    run(&html).said("is not in Redis's protocol; check the host and the port in the store's URL");
    let long = Fake::start(Manner::Answer(kept(bulk(&"x".repeat(2 << 20)))));
    run(&long).said("answered EVAL").said("longer than anything that lockrun asks for");
}
