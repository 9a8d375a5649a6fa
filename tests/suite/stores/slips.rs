//! Slips in a store's address: what is wrong is named, with what to do; nothing runs, and nothing comes into being.

use std::fs;

use crate::support::{Lockrun, Output, Store, memory};

/// A token as good as any.
const TOKEN: &str = "00000000-0000-4000-8000-000000000000";

fn ask(url: &str, request: &[&str]) -> Output {
    Lockrun::bare().env("LOCKRUN_STORE", url).env("LOCKRUN_STORE_TIMEOUT", "1s").args(request).run()
}

// "Only who takes a lock creates the directory": a misspelt one is not there afterwards.
#[test]
fn a_misspelt_directory() {
    let parent = memory::directory();
    let typo = format!("file:{}/typo", parent.path().display());
    let deep = format!("file:{}/no/such/typo", parent.path().display());
    for (request, status, words) in [
        (&["status"][..], 0, ""),
        (&["status", "--json"], 0, "[]"),
        (&["status", "--key", "k"], 0, "free"),
        (&["break", "--key", "k"], 0, "is free; there is nothing to break"),
        (&["break", "--key", "k", "--now"], 0, "is free; there is nothing to break"),
        (&["renew", "--key", "k", "--token", TOKEN], 79, "nobody holds it"),
        (&["release", "--key", "k", "--token", TOKEN], 79, "nobody holds it"),
        (&["prune", "--older-than", "0"], 0, ""),
        (&["prune", "--older-than", "0", "--dry-run"], 0, ""),
        (&["doctor"], 0, "does not exist"),
    ] {
        for url in [&typo, &deep] {
            // No run could create it there.
            let status = if request == ["doctor"] && *url == deep { 69 } else { status };
            let words = if status == 69 { "cannot create the lock directory" } else { words };
            let output = ask(url, request).exited(status);
            let said = format!("{}{}", output.stdout(), output.stderr());
            assert!(said.contains(words), "{words:?}: {output}");
            assert_eq!(fs::read_dir(parent.path()).expect("ours").count(), 0, "something was created: {output}");
        }
    }
    // What others could have planted is refused all the same.
    let file = parent.path().join("typo");
    fs::write(&file, "here").expect("a file");
    ask(&typo, &["status"]).exited(69).said("not a directory");
    fs::remove_file(file).expect("ours");
    // Who takes a lock creates it.
    let store = Store::file();
    Lockrun::new(&store).key("k").command(["true"]).run().exited(0).silent();
    assert!(store.locks().is_dir());
}
