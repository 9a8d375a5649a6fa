//! The record in a lock's file: what is broken or foreign is never taken for a free lock, and a run that is killed
//! while it ends leaves a whole one.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::libc;
use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::birth::Birth;
use crate::support::hand::{all, break_lock, is_held, release, renew, status, token};
use crate::support::holder::is_free;
use crate::support::lock_file::{edit, is_taken, path};
use crate::support::sequence::{self, next, peek, reserve};
use crate::support::steps::end_in_steps;
use crate::support::{Holder, Lockrun, Output, Store};

/// Asserts that the message says which file it is, and what to do.
#[track_caller]
fn refuses(output: Output, path: &Path) {
    let path = path.display().to_string();
    output.exited(69).printed("").said("be acquired").said(&path).said(&format!("truncate -s 0 {path}"));
}

/// Asserts that every command fails, so that no run acquires the lock and none reports it as free.
#[track_caller]
fn nobody_gets(store: &Store, key: &str) {
    let path = path(store, key);
    let run = Lockrun::new(store).key(key).command(["echo", "ran"]);
    for options in [&[][..], &["--skip"], &["--wait"], &["--slots", "3"]] {
        refuses(run.clone().args(options).run(), &path);
    }
    refuses(Lockrun::other("acquire", store).key(key).run(), &path);
    refuses(Lockrun::other("status", store).key(key).run(), &path);
    refuses(renew(store, key, "strange", &[]), &path);
    refuses(release(store, key, "strange"), &path);
    refuses(break_lock(store, key, &[]), &path);
}

/// Returns where to cut a file: in the mark, in the first line, in a record, between the copies, and just before its
/// end.
fn cuts(whole: &[u8]) -> Vec<usize> {
    let copies: Vec<usize> = (0..whole.len()).filter(|at| whole[*at..].starts_with(b"lockrun ")).collect();
    let inside = copies.iter().flat_map(|at| [at + 1, at + 8, at + 40, at + 100, at + 200]);
    inside
        .chain(copies.iter().copied())
        .chain([whole.len() / 2, whole.len() - 1])
        .filter(|length| *length > 0)
        .collect()
}

// "A record that cannot be parsed is an error, never free": a lease that is held by hand or kept is not forgotten,
// wherever the file is cut.
#[test]
fn a_lease_in_a_file_that_was_cut() {
    let store = Store::file();
    let long = "x".repeat(1500);
    for (key, word, rounds) in [("first", "a", 0), ("second", "a", 1), ("third", "a", 2), ("long", &*long, 0)] {
        for _ in 0..rounds {
            Lockrun::new(&store).key(key).command(["true"]).run().exited(0);
        }
        Lockrun::new(&store).key(key).args(["--keep", "--ttl", "none"]).sh(&format!(": {word}")).run().exited(0);
        token(&store, key, &["--ttl", "none", "--slots", "2"]);
        let path = path(&store, key);
        let whole = fs::read(&path).expect("the lock has a file");
        for length in cuts(&whole) {
            fs::write(&path, &whole[..length]).expect("it is written");
            let run = Lockrun::new(&store).key(key).command(["echo", "ran"]).run();
            assert_eq!(run.status, Some(69), "{key} cut at {length}: {run}");
            refuses(run, &path);
        }
        nobody_gets(&store, key);
        fs::write(&path, &whole).expect("it is written");
        assert!(is_held(&store, key), "it is whole again");
    }
}

// "... or a whole sequence would be forgotten": it goes on when the file is whole again, and does not start again
// before.
#[test]
fn a_sequence_in_a_file_that_was_cut() {
    let store = Store::file();
    let call = reserve(&store, "7");
    let values: Vec<_> = (0..3).map(|_| next(&call)).collect();
    assert_eq!(values, ["7", "8", "9"]);
    let path = path(&store, "seq");
    let whole = fs::read(&path).expect("it has a file");
    for length in cuts(&whole) {
        fs::write(&path, &whole[..length]).expect("it is written");
        refuses(call.clone().command(["echo", "ran"]).run(), &path);
    }
    fs::write(&path, &whole).expect("it is written");
    assert_eq!(peek(&call), "10");
}

// "An empty file is a fresh one", and emptying the file is what the message advises. A running command keeps its lock.
#[test]
fn a_file_that_was_emptied_is_a_fresh_one() {
    let store = Store::file();
    let path = path(&store, "emptied");
    token(&store, "emptied", &["--ttl", "none"]);
    let before = status(&store, "emptied")["fence"].as_u64();
    fs::write(&path, "").expect("it is emptied");
    assert!(!is_held(&store, "emptied"));
    let output = Lockrun::new(&store).key("emptied").sh("echo $LOCKRUN_FENCE").run().exited(0).silent();
    assert!(output.stdout().trim().parse().ok() > before, "{output}");
    let holder = Holder::new(&store, "emptied");
    fs::write(&path, "").expect("it is emptied");
    let output = Lockrun::new(&store).key("emptied").command(["echo", "ran"]).run().exited(75);
    output.printed("").said("a run that has left no name");
    // Nobody knows for how long, so it is not skipped.
    Lockrun::new(&store).key("emptied").arg("--skip=1h").command(["echo", "ran"]).run().exited(75).printed("");
    // It is not free to the other commands either, and they find its processes.
    assert!(is_held(&store, "emptied"));
    assert_eq!(all(&store)[0]["holders"][0]["pid"], holder.pid());
    let pid = holder.pid().to_string();
    break_lock(&store, "emptied", &[]).exited(75).said("stays with ").said(&pid);
    break_lock(&store, "emptied", &["--fence", "1"]).exited(75).said("is not held under that fence").said(&pid);
    Lockrun::other("prune", &store).key("emptied").run().exited(75).printed("").said("it is held");
    holder.end();
    assert!(is_free(&store, "emptied"));
}

// A record that breaks while a command runs is no reason to stop it, and its slot is released at its end.
#[test]
fn a_record_that_breaks_during_a_run() {
    let store = Store::file();
    let path = path(&store, "breaks");
    let mut run = Lockrun::new(&store).key("breaks").sh("echo ready; read line || :; exit 3").with_open_input();
    run.run.wait_for_line("ready");
    let whole = fs::read(&path).expect("the lock has a file");
    fs::write(&path, &whole[..whole.len() / 2]).expect("it is written");
    nobody_gets(&store, "breaks");
    run.finish().exited(3).said("truncate -s 0");
    assert!(!is_taken(&path));
    fs::write(&path, "").expect("it is emptied");
    assert!(is_free(&store, "breaks"));
}

// "A foreign file in the directory" is not a free lock, and does not keep commands from reading other locks.
#[test]
fn a_foreign_file() {
    let store = Store::file();
    token(&store, "ours", &[]);
    for text in ["hello\n", "{}", "{\"key\":\"foreign\",\"fence\":1}\n", "\u{1b}[2J", &"x".repeat(10_000)] {
        fs::write(path(&store, "foreign"), text).expect("it is written");
        nobody_gets(&store, "foreign");
        assert_eq!(fs::read_to_string(path(&store, "foreign")).expect("it is there"), text, "it stays as it is");
    }
    assert_eq!(all(&store).len(), 1);
    Lockrun::other("prune", &store).args(["--older-than", "0"]).run().exited(0).printed("").silent();
    assert!(path(&store, "foreign").exists());
    let doctor = Lockrun::other("doctor", &store).run();
    let line = doctor.stdout().lines().find(|line| line.contains("something else")).map(str::to_owned);
    assert!(line.is_some_and(|line| line.starts_with("warn ") && line.contains("locks/foreign")), "{doctor}");
}

/// Plants something at a path.
type Plant = fn(&Path);

// "Anything else with a lock file's name" is no free lock either, and the message says what to do.
#[test]
fn something_else_in_the_place_of_a_file() {
    let store = Store::file();
    token(&store, "ours", &[]);
    let path = path(&store, "foreign");
    let plants: [(Plant, &str); 4] = [
        (|path| mkfifo(path, Mode::S_IRWXU).expect("a FIFO"), "not a regular file"),
        (|path| drop(UnixListener::bind(path).expect("a socket")), "a socket"),
        (|path| symlink("ours", path).expect("a link"), "a symbolic link"),
        (|path| fs::create_dir(path).expect("a directory"), "a directory"),
    ];
    for (plant, words) in plants {
        plant(&path);
        let run = Lockrun::new(&store).key("foreign").command(["echo", "ran"]);
        for call in [run.clone(), run.arg("--skip"), Lockrun::other("status", &store).key("foreign")] {
            let output = call.run().exited(69).printed("");
            output.said(words).said("find out who put it there, then remove it");
        }
        let doctor = Lockrun::other("doctor", &store).run();
        let line = doctor.stdout().lines().find(|line| line.contains("locks/foreign")).map(str::to_owned);
        assert!(line.is_some_and(|line| line.starts_with("warn ") && line.contains(words)), "{doctor}");
        assert_eq!(all(&store).len(), 1);
        fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).expect("it is ours");
    }
}

// "Readers (`status`, `prune`, `doctor`) cope": they do what they can, and say what is broken.
#[test]
fn the_other_locks_are_still_listed() {
    let store = Store::file();
    for key in ["a", "broken", "z"] {
        Lockrun::new(&store).key(key).command(["true"]).run().exited(0);
    }
    let well = Lockrun::other("doctor", &store).run();
    assert!(well.stdout().contains("ok    the records of all locks there can be read (3)"), "{well}");
    let path = path(&store, "broken");
    let whole = fs::read(&path).expect("the lock has a file");
    fs::write(&path, &whole[..100]).expect("it is written");
    for options in [&[][..], &["--json"]] {
        let told = Lockrun::other("status", &store).args(options).run().exited(69);
        let text = told.stdout();
        assert!(text.contains("true") || text.contains("ok"), "{told}");
        assert_eq!(
            (text.matches("free").count(), text.contains("broken")),
            (if options.is_empty() { 2 } else { 0 }, false)
        );
        told.said("is broken").said("truncate -s 0");
    }
    let pruned = Lockrun::other("prune", &store).args(["--older-than", "0"]).run();
    pruned.exited(69).printed("a\nz\n").said("is broken").said("truncate -s 0");
    assert_eq!(fs::read(&path).expect("it is left alone"), whole[..100]);
    let doctor = Lockrun::other("doctor", &store).run().exited(2);
    let line = doctor.stdout().lines().find(|line| line.starts_with("fail ")).map(str::to_owned).expect("a failure");
    assert!(line.contains("locks/broken") && line.contains("truncate -s 0"), "{line}");
}

// "A full disk leaves what was there": a run that cannot write does not get the lock, and no other run loses it.
#[test]
fn a_record_that_cannot_be_written() {
    let store = Store::file();
    let ours = token(&store, "full", &["--ttl", "none"]);
    let before = fs::read(path(&store, "full")).expect("the lock has a file");
    let size = before.len() as u64;
    let limited = Birth { limits: vec![(Resource::RLIMIT_FSIZE, size, size)], ..Birth::default() };
    let long = format!("echo ran; : {}", "x".repeat(1500));
    let run = Lockrun::new(&store).key("full").args(["--slots", "2"]).sh(&long).birth(limited).run();
    run.exited(69).printed("").said("cannot write");
    assert_eq!(fs::read(path(&store, "full")).expect("the lock has a file"), before);
    assert!(is_held(&store, "full"));
    release(&store, "full", &ours).exited(0).silent();
}

// "Status 69: ... COMMAND was not started", if a limit on the size of files would keep the end of the run from being
// written.
#[test]
fn a_limit_on_file_sizes() {
    let store = Store::file();
    let limited = |bytes| Birth { limits: vec![(Resource::RLIMIT_FSIZE, bytes, bytes)], ..Birth::default() };
    for key in ["fresh", "used"] {
        let call = Lockrun::new(&store).key(key);
        if key == "used" {
            call.clone().command(["true"]).run().exited(0).silent();
        }
        for _ in 0..3 {
            for bytes in [512, 1024] {
                let run = call.clone().birth(limited(bytes)).command(["echo", "ran"]).run();
                run.exited(69).printed("").said("ulimit -f").said(&path(&store, key).display().to_string());
            }
        }
        call.birth(limited(1 << 14)).command(["true"]).run().exited(0).silent();
    }
    let reserved = reserve(&store, "1").birth(limited(1024)).command(["echo", "ran"]).run();
    reserved.exited(69).printed("").said("ulimit -f");
    // The same for a lock by hand, which stays as it is.
    let ours = token(&store, "hand", &["--ttl", "none"]);
    for (word, options) in
        [("renew", &["--token", &*ours, "--ttl", "1h"][..]), ("release", &["--token", &ours]), ("break", &[])]
    {
        let call = Lockrun::other(word, &store).key("hand").args(options).birth(limited(1024));
        call.run().exited(69).printed("").said("ulimit -f").said("locks/hand");
    }
    release(&store, "hand", &ours).exited(0).silent();
}

// "One enum holds every way a run can end": if the end of a run cannot be recorded, the lock is free, a message says so
// and what is lost, and the status is COMMAND's.
#[test]
fn an_end_that_cannot_be_written() {
    let store = Store::file();
    // From now on lockrun cannot write the second copy of a record, nor much else.
    let script = |status: u32| format!("prlimit --fsize=1024 --pid $PPID; exit {status}");
    let run = Lockrun::new(&store).key("end").sh(&script(3)).run().exited(3);
    run.said("lock \"end\" is free, but how the run ended is not recorded: cannot write");
    assert!(is_free(&store, "end"));
    for options in [["--keep", "--ttl=10m"], ["--min-hold", "10m"]] {
        let run = Lockrun::new(&store).key(options[0]).args(options).sh(&script(0)).run().exited(0);
        run.said("is free, although it should have been kept: cannot write");
        assert!(is_free(&store, options[0]), "{options:?}");
    }
    let run = reserve(&store, "7").sh(&script(0)).run().exited(0);
    run.said("value of the sequence \"seq\" may come up again, although it was used: cannot write");
    assert_eq!(peek(&reserve(&store, "7")), "7");
}

// "Each acquisition of a key gets a number greater than every earlier one", or none at all.
#[test]
fn a_fence_that_cannot_grow() {
    let store = Store::file();
    let call = Lockrun::new(&store).key("fence").sh("echo $LOCKRUN_FENCE");
    call.run().exited(0).silent();
    let set = |fence: u64| edit(&path(&store, "fence"), |record| record["fence"] = fence.into());
    let greatest = i64::MAX.unsigned_abs();
    for fence in [1 << 53, greatest - 2] {
        set(fence);
        call.run().exited(0).silent().printed(&format!("{}\n", fence + 1));
    }
    call.run().exited(0).silent().printed(&format!("{greatest}\n"));
    call.run().exited(69).printed("").said("fence").said(&path(&store, "fence").display().to_string());
}

/// Returns a run whose command has started, and waits for the end of its input.
fn waiting(call: Lockrun) -> crate::support::lockrun::Open {
    let mut run = call.sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    run
}

// "`--keep`: the lock stays", and "keep the lock at least this long": a run that finds the slot free finds the lease in
// the record.
#[test]
fn what_stays_is_written_before_the_slot_is_free() {
    let store = Store::file();
    for options in [["--keep", "--ttl=10m"], ["--min-hold", "10m"]] {
        let run = waiting(Lockrun::new(&store).key("stays").args(options));
        let file = path(&store, "stays");
        let (run, killed) = end_in_steps(run, |_, _| !is_taken(&file));
        assert!(killed, "its slot is free");
        run.wait().died_of(Signal::SIGKILL);
        assert!(is_held(&store, "stays"), "{options:?}");
        assert_eq!(status(&store, "stays")["last"]["status"], 0);
        break_lock(&store, "stays", &[]).exited(0);
    }
}

// "A writer that is killed must not leave a torn record": a run that is killed at each system call of its end, again
// and again, has either ended with its lock kept, or died with its lock; the fence grows all the time.
#[test]
fn a_run_that_is_killed_at_its_end() {
    let store = Store::file();
    let file = path(&store, "killed");
    let (mut fence, mut kept, mut lost) = (0, 0, 0);
    for number in 0.. {
        let run = waiting(Lockrun::new(&store).key("killed").args(["--keep", "--ttl", "10m"]));
        let told = status(&store, "killed")["fence"].as_u64().expect("a number");
        assert!(told > fence, "{told} after {fence}");
        fence = told;
        let mut was_free = false;
        let (run, killed) = end_in_steps(run, |stop, _| {
            was_free = !is_taken(&file);
            stop == number
        });
        let output = run.wait();
        if is_held(&store, "killed") {
            kept += 1;
            break_lock(&store, "killed", &[]).exited(0);
        } else {
            lost += 1;
            assert!(!was_free && killed, "at stop {number}");
        }
        if !killed {
            output.exited(0).silent();
            break;
        }
    }
    assert!(kept > 1 && lost > 1, "{kept} {lost}");
}

/// Returns the system calls that a run makes at its end.
fn calls_at_end(call: Lockrun) -> Vec<libc::c_long> {
    let mut calls = Vec::new();
    let (run, _) = end_in_steps(waiting(call), |_, call| {
        calls.push(call);
        false
    });
    run.wait().exited(0).silent();
    calls
}

// "A value that was used never comes up again", also when the power fails a moment later: it is on the disk before
// lockrun ends with 0. Nothing else in a record has to survive that, so no other run waits for a disk.
#[test]
fn a_used_value_is_on_the_disk() {
    let store = Store::file();
    let calls = calls_at_end(reserve(&store, "1"));
    let last = |wanted: libc::c_long| calls.iter().rposition(|call| *call == wanted);
    let (written, synced) = (last(libc::SYS_pwrite64), last(libc::SYS_fdatasync));
    assert!(written.is_some() && written < synced && synced < last(libc::SYS_fsync), "{calls:?}");
    assert_eq!(sequence::reserved(&store), Vec::<String>::new());
    for options in [&[][..], &["--keep"], &["--min-hold", "10m"]] {
        let key = format!("plain{}", options.concat());
        let calls = calls_at_end(Lockrun::new(&store).key(key).args(options));
        let disk = [libc::SYS_fdatasync, libc::SYS_fsync];
        assert!(calls.contains(&libc::SYS_pwrite64) && !calls.iter().any(|call| disk.contains(call)), "{calls:?}");
    }
}
