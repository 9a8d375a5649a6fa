//! Replays the corpus in every run of the tests: each input as it is, and with random changes.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use super::{TARGETS, Target};

/// How many changed versions of each input are tried.
const CHANGES: u64 = 100;

/// The longest input in bytes, so that reviewers can read it.
const LENGTH_MAX: usize = 8 * 1024;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

/// Returns the inputs of a target with their file names, sorted by name.
fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let directory = directory().join(target.name);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("is listed").path();
            (path.file_name().expect("a file").to_string_lossy().into_owned(), fs::read(&path).expect("is read"))
        })
        .collect();
    inputs.sort();
    inputs
}

/// Returns the input, changed in a few places or mixed with another one.
fn changed(input: &[u8], inputs: &[(String, Vec<u8>)], random: &mut Rng) -> Vec<u8> {
    let mut input = input.to_vec();
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(0..=input.len());
        let end = random.usize(at..=input.len().min(at + 16));
        match random.u8(0..7) {
            0 => drop(input.drain(at..end)),
            1 => input.truncate(at),
            2 => input.insert(at, random.u8(..)),
            3 if at < input.len() => input[at] ^= 1 << random.u8(0..8),
            4 => drop(input.splice(at..at, input[at..end].to_vec())),
            5 => drop(input.splice(at..end, random.i64(..).to_string().into_bytes())),
            _ => {
                let (_, other) = &inputs[random.usize(0..inputs.len())];
                let from = random.usize(0..=other.len());
                drop(input.splice(at..end, other[from..other.len().min(from + 64)].iter().copied()));
            }
        }
    }
    input
}

fn try_one(target: &Target, name: &str, input: &[u8]) {
    let tried = catch_unwind(|| target.run(input));
    assert!(tried.is_ok(), "{} breaks by {name}: {:?}", target.name, input.escape_ascii().to_string());
}

/// Tries the inputs of a target, and changed versions of them.
fn try_all(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("is a target");
    let inputs = corpus(target);
    assert!(!inputs.is_empty(), "{name} has no input");
    for (at, (input_name, input)) in inputs.iter().enumerate() {
        assert!(input.len() <= LENGTH_MAX, "{name}/{input_name} is too long");
        try_one(target, input_name, input);
        let mut random = Rng::with_seed(at as u64);
        for change in 0..CHANGES {
            let input = changed(input, &inputs, &mut random);
            try_one(target, &format!("change {change} of {input_name}"), &input);
        }
    }
}

/// Defines one test for each target, so that they run in parallel.
macro_rules! no_input_breaks {
    ($($target:ident)*) => {
        mod no_input_breaks {
            $(#[test]
            fn $target() {
                super::try_all(stringify!($target));
            })*
        }

        const TRIED: &[&str] = &[$(stringify!($target)),*];
    };
}

no_input_breaks! {
    url duration words config variables record resp redis failover postgres mysql etcd pgpass mycnf status
}

#[test]
fn every_target_is_tried() {
    assert_eq!(TARGETS.map(|target| target.name), TRIED);
}

#[test]
fn every_directory_is_a_targets() {
    for entry in fs::read_dir(directory()).expect("the corpus") {
        let name = entry.expect("is listed").file_name();
        assert!(TARGETS.iter().any(|target| *target.name == name), "{name:?}");
    }
}

/// Returns the packages of a `Cargo.lock` except lockrun itself, each with its version.
fn packages(lock: &str) -> Vec<(String, String)> {
    let value = |line: Option<&str>, name: &str| {
        let value = line.and_then(|line| line.strip_prefix(name)?.strip_prefix(" = ")).unwrap_or_default();
        value.trim_matches('"').to_owned()
    };
    let package = |text: &str| {
        let mut lines = text.lines();
        (value(lines.next(), "name"), value(lines.next(), "version"))
    };
    lock.split("[[package]]\n").skip(1).map(package).filter(|(name, _)| name != "lockrun").collect()
}

/// Returns the lines of `[dependencies]` in a manifest.
fn dependencies(manifest: &str) -> &str {
    manifest.split_once("\n[dependencies]\n").expect("has some").1.split_once("\n\n").expect("are not last").0
}

// The fuzzer is a separate package, which has to repeat lockrun's dependencies.
#[test]
fn the_fuzzer_is_built_of_what_lockrun_is_built_of() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let read = |name: &str| fs::read_to_string(fuzz.join(name)).expect(name);
    assert_eq!(dependencies(&read("Cargo.toml")), dependencies(include_str!("../../Cargo.toml")));
    let (fuzzer, ours) = (packages(&read("Cargo.lock")), packages(include_str!("../../Cargo.lock")));
    let newer: Vec<_> = fuzzer.iter().filter(|(name, _)| ours.iter().any(|(known, _)| known == name)).collect();
    assert!(newer.iter().all(|package| ours.contains(package)), "{newer:?}");
}
