//! lockrun under libFuzzer: its sources as they are, without its entry point. `LOCKRUN_FUZZ` names the target.

#![no_main]
// Most of the program is not fuzzed.
#![allow(dead_code, unused_imports)]

#[path = "../src/cli/mod.rs"]
mod cli;
#[path = "../src/commands/mod.rs"]
mod commands;
#[path = "../src/config/mod.rs"]
mod config;
#[path = "../src/fuzz/mod.rs"]
mod fuzz;
#[path = "../src/lock/mod.rs"]
mod lock;
#[path = "../src/net/mod.rs"]
mod net;
#[path = "../src/report/mod.rs"]
mod report;
#[path = "../src/run/mod.rs"]
mod run;
#[path = "../src/store/mod.rs"]
mod store;
#[path = "../src/supervise/mod.rs"]
mod supervise;
#[path = "../src/sys/mod.rs"]
mod sys;
#[path = "../src/text/mod.rs"]
mod text;

use std::sync::LazyLock;

static TARGET: LazyLock<&fuzz::Target> = LazyLock::new(|| {
    let wanted = std::env::var("LOCKRUN_FUZZ").unwrap_or_default();
    let known = fuzz::TARGETS.iter().find(|target| target.name == wanted);
    known.unwrap_or_else(|| panic!("LOCKRUN_FUZZ={wanted} names none of the targets"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| TARGET.run(input));
