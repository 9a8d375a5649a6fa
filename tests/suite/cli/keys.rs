//! Names of locks: any text is a name, each is a separate lock, and none reaches outside its store.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::support::holder::is_free;
use crate::support::store::{on_every_store, on_redis};
use crate::support::{Holder, LeaseServer, Lockrun, Store, redis_keys};

fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "../../etc/x",
        "/etc/x",
        "..",
        ".",
        "a/b",
        "a%2Fb",
        "a%2fb",
        "%2e",
        "%2E",
        "%",
        "a{b}c",
        "a}b{c",
        "{}",
        "{a}",
        "a b",
        "a  b",
        " a",
        "a ",
        "a:b",
        "a\\b",
        "ключ",
        "é",
        "e\u{301}",
        "A",
        "a",
        "-n",
        "--key",
        "*",
        "$(id)",
        "a'b",
        "a\"b",
        "\u{202e}abc",
        "fence",
        "last",
    ]
    .map(str::to_owned)
    .into();
    // The longest ones, which differ only where they begin or where they end.
    names.push("x".repeat(512));
    names.push(format!("{}y", "x".repeat(511)));
    names.push(format!("y{}", "x".repeat(511)));
    names.push("ж".repeat(256));
    names.push("/".repeat(512));
    names
}

fn everything_below(directory: &Path) -> Vec<fs::DirEntry> {
    let entries = fs::read_dir(directory).expect("our own directory");
    entries.map(|entry| entry.expect("our own directory")).collect()
}

// "`-k, --key KEY`: 1 to 512 bytes of UTF-8, no control characters": all at once, and none blocks another.
on_every_store!(names_lock_independently, |store| {
    let names = names();
    let held: Vec<Holder> = names.iter().map(|name| Holder::new(store, name)).collect();
    for name in &names {
        let output = Lockrun::new(store).key(name).sh("echo ran").run();
        output.exited(75).printed("").said("is held by");
    }
    drop(held);
    if let Store::File(directory) = store {
        let around = everything_below(directory.path());
        assert_eq!(around.len(), 1, "outside the store: {around:?}");
        let files = everything_below(&store.locks());
        assert!(files.iter().all(|file| file.file_type().expect("ours").is_file()), "{files:?}");
        assert_eq!(files.len(), names.len(), "one file a name: {files:?}");
    }
    if let Store::Redis(redis) = store {
        let keys = redis.keys();
        assert!(keys.iter().all(|key| redis_keys::is_ours(key)), "{keys:?}");
    }
});

// "COMMAND finds `LOCKRUN_KEY`": the name as it was given.
on_every_store!(the_command_sees_the_name, |store| {
    for name in names() {
        let output = Lockrun::new(store).key(&name).sh("printf %s \"$LOCKRUN_KEY\"").run();
        output.exited(0).printed(&name).silent();
        assert!(is_free(store, &name));
    }
});

// "All keys of a lock lie under `PREFIX:{KEY}:` (KEY escaped so that a brace in it is harmless)": they share one
// hash tag, which is theirs alone.
on_redis!(a_locks_keys_share_a_hash_tag, |store, redis| {
    let mut tags = BTreeSet::new();
    for name in names() {
        Lockrun::new(store).key(&name).command(["true"]).run().exited(0);
        let of_this: BTreeSet<String> = redis.keys().iter().map(|key| hash_tag(key)).collect();
        assert_eq!(of_this.len(), 1, "{name:?}: {of_this:?}");
        redis.forget_everything();
        let tag = of_this.into_iter().next().expect("one tag");
        assert!(!tag.is_empty(), "{name:?}");
        assert!(tags.insert(tag.clone()), "{name:?} shares the tag {tag:?}");
    }
});

/// Returns the part of a key that a cluster hashes: between the first brace and the next closing one.
fn hash_tag(key: &str) -> String {
    let (_, rest) = key.split_once('{').expect("a brace");
    rest.split_once('}').expect("a closing brace").0.to_owned()
}
