//! A PostgreSQL server as the server of a lease store: its faults, and the locks that it stores.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::Postgres;
use super::client::Row;
use crate::support::deadline::{LONG, eventually};
use crate::support::lease_server::LeaseServer;
use crate::support::processes::{children, send, state};

impl Postgres {
    /// Runs a statement. Returns its rows, or none while there are no tables.
    #[track_caller]
    fn stored(&self, statement: &str) -> Vec<Row> {
        match self.try_ask(statement) {
            Ok(rows) => rows,
            // undefined_table
            Err(error) if error.to_string().contains("42P01") => Vec::new(),
            Err(error) => panic!("{statement}: {error}"),
        }
    }

    /// Changes the state of a lock.
    #[track_caller]
    pub(crate) fn edit(&self, key: &str, change: impl FnOnce(&mut Value)) {
        let key = quoted(key);
        let state = self.ask(&format!("SELECT state FROM lockrun.locks WHERE key = {key}"));
        let mut state = serde_json::from_str(&state).expect("JSON");
        change(&mut state);
        let state = quoted(&state.to_string());
        self.ask(&format!("UPDATE lockrun.locks SET state = {state} WHERE key = {key}"));
    }

    /// Adds a waiter that never asks again, and whose place lasts.
    #[track_caller]
    pub(crate) fn add_waiter(&self, key: &str, waiter: &Value) {
        let token = quoted(waiter["token"].as_str().expect("a token"));
        let (key, waiter) = (quoted(key), quoted(&waiter.to_string()));
        self.ask(&format!(
            "INSERT INTO lockrun.waiters (key, token, waiter, ends_ms) VALUES ({key}, {token}, {waiter}, 9000000000000)"
        ));
    }
}

impl LeaseServer for Postgres {
    fn port(&self) -> u16 {
        self.port
    }

    fn url_at(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable")
    }

    fn pause(&self) {
        let postmaster = self.postmaster();
        let stop = |pid: i32| {
            send(pid, Signal::SIGSTOP);
            eventually(LONG, "it stands still", || matches!(state(pid), None | Some('T' | 'Z')));
        };
        // So that no new ones are started.
        stop(postmaster);
        children(postmaster).into_iter().for_each(stop);
    }

    fn resume(&self) {
        let postmaster = self.postmaster();
        children(postmaster).into_iter().chain([postmaster]).for_each(|pid| send(pid, Signal::SIGCONT));
    }

    fn kill(&self) {
        self.end();
    }

    fn start_again(&self) {
        // A leftover file names a process that is gone; another process may have its id by now.
        let _ = fs::remove_file(self.data().join("postmaster.pid"));
        assert!(self.launch(), "postgres does not start again");
    }

    fn hang_up(&self) {
        self.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        );
    }

    fn forget_everything(&self) {
        // A client that uses one table may wait for another that is already dropped.
        let drop = "SET lock_timeout = '1s'; DROP SCHEMA IF EXISTS lockrun CASCADE";
        eventually(LONG, "everything is deleted", || self.try_ask(drop).is_ok());
    }

    fn forget_holders(&self, key: &str) {
        self.edit(key, |state| state["holders"] = Value::Array(Vec::new()));
    }

    fn expire(&self, key: &str) {
        self.edit(key, |state| {
            for holder in state["holders"].as_array_mut().into_iter().flatten() {
                holder["lease"]["ends_ms"] = Value::from(1);
            }
        });
    }

    fn word(&self) -> &'static str {
        // The whole statement, because `READ COMMITTED` occurs in the first message. Reads of the record have no such
        // end.
        "\0COMMIT\0"
    }

    fn requests(&self) -> u64 {
        // Requests that lock a lock's row, renewals of a place, and reads.
        self.count(
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
             WHERE query LIKE '%FOR UPDATE%' OR query LIKE '%SET ends_ms = greatest%' OR query LIKE 'SELECT state, key%OPERATOR%'
                 OR query LIKE 'SET TRANSACTION % READ ONLY'",
        )
    }

    fn round_trips(&self, requests: u64) -> u64 {
        // The server's own handshake, then the two halves of each transaction.
        1 + 2 * requests
    }

    fn waiting(&self, key: &str) -> Vec<String> {
        let key = quoted(key);
        let tokens = self.stored(&format!("SELECT token FROM lockrun.waiters WHERE key = {key} ORDER BY place"));
        tokens.into_iter().flatten().flatten().collect()
    }

    fn asleep(&self) -> usize {
        // A waiter that listens has a session, which is idle.
        let asleep = self.stored(
            "SELECT count(*) FILTER (WHERE channel IS NULL) + least(count(channel), (
                 SELECT count(*) FROM pg_stat_activity
                 WHERE backend_type = 'client backend' AND state = 'idle' AND pid <> pg_backend_pid()))
             FROM lockrun.waiters WHERE ends_ms > extract(epoch FROM clock_timestamp()) * 1000",
        );
        asleep.first().map_or(0, |row| row[0].as_ref().and_then(|count| count.parse().ok()).expect("a number"))
    }

    fn left(&self, key: &str, counts_what_goes: bool) -> Vec<String> {
        let mut left = Vec::new();
        for row in self.stored("SELECT key, state FROM lockrun.locks ORDER BY key") {
            let [Some(name), Some(state)] = &row[..] else { panic!("{row:?}") };
            if name == key {
                let state = serde_json::from_str(state).expect("JSON");
                left.extend(what_holds(&state, counts_what_goes).map(|what| format!("{name}: {what}")));
            } else {
                left.push(format!("{name}: all"));
            }
        }
        if counts_what_goes {
            let waiters = self.stored("SELECT key || ': the waiter ' || token FROM lockrun.waiters ORDER BY place");
            left.extend(waiters.into_iter().flatten().flatten());
        }
        left
    }
}

/// Returns what is stored of a lock besides its fence and its last run. Notes about requests that may still arrive are
/// left out: they hold nothing, and expire.
pub(crate) fn what_holds(state: &Value, counts_what_goes: bool) -> impl Iterator<Item = String> {
    let none = Vec::new();
    let holders = state["holders"].as_array().unwrap_or(&none);
    let stay = holders.iter().filter(|holder| counts_what_goes || !holder["lease"]["ends_ms"].is_number());
    let holders: Vec<String> = stay.map(|holder| format!("the holder {}", holder["token"])).collect();
    let sequence = state["sequence"].is_object().then(|| "the sequence".to_owned());
    holders.into_iter().chain(sequence)
}

/// Quotes a text for a statement.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
