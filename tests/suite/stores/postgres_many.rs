//! A PostgreSQL store with many keys: more than fit into one answer, and some that others keep busy.

use crate::support::holder::is_free;
use crate::support::store::on_postgres;
use crate::support::{Lockrun, Postgres, Store};

/// Adds this many keys to that of a lock that was used once, each with a record of 50 kB: `key 00001` and so on.
fn add_keys(postgres: &Postgres, count: usize) {
    postgres.ask(&format!(
        "INSERT INTO lockrun.locks
         SELECT 'key ' || lpad(n::text, 5, '0'),
             (left(state::text, -1) || ',\"padding\":\"' || repeat('x', 50000) || '\"}}')::json
         FROM lockrun.locks, generate_series(1, {count}) AS n"
    ));
}

fn other(store: &Store, words: &[&str]) -> Lockrun {
    Lockrun::other(words[0], store).args(&words[1..])
}

// `status` and `prune` work however many keys there are: these take 75 MB.
on_postgres!(more_than_one_answer_can_hold, |store, postgres| {
    assert!(is_free(store, "key 00000"));
    add_keys(postgres, 1499);
    let keys = || (0..1500).map(|number| format!("key {number:05}"));
    let table = other(store, &["status"]).run().exited(0).silent().stdout();
    let shown: Vec<&str> = table.lines().skip(1).map(|line| &line[..9]).collect();
    assert!(shown.iter().copied().eq(keys()), "{}", shown.len());
    let all: String = keys().map(|key| key + "\n").collect();
    other(store, &["prune", "--older-than", "0", "--dry-run"]).run().exited(0).silent().printed(&all);
    assert_eq!(postgres.count("SELECT count(*) FROM lockrun.locks"), 1500);
    other(store, &["prune", "--older-than", "0"]).run().exited(0).silent().printed(&all);
    assert_eq!(postgres.count("SELECT count(*) FROM lockrun.locks"), 0);
});

// "One that is busy spoils no other": another client has locked the row of one key; that key is named, and the others
// are pruned.
on_postgres!(a_key_that_is_busy, |store, postgres| {
    for key in ["a", "b", "c"] {
        assert!(is_free(store, key));
    }
    let other_client = postgres.transaction("SELECT FROM lockrun.locks WHERE key = 'b' FOR UPDATE");
    let prune = other(store, &["prune", "--older-than", "0", "--store-timeout", "1s"]);
    // A dry run locks no rows.
    prune.clone().arg("--dry-run").run().exited(0).silent().printed("a\nb\nc\n");
    let output = prune.run().exited(69).printed("a\nc\n").said("cannot prune the lock \"b\"");
    assert_eq!(output.stderr().lines().count(), 1, "{output}");
    assert_eq!(postgres.ask("SELECT key FROM lockrun.locks"), "b\n");
    drop(other_client);
    prune.run().exited(0).silent().printed("b\n");
});

// Keys that were removed before a failure are named all the same.
on_postgres!(a_failure_in_the_middle, |store, postgres| {
    for key in ["a", "b", "c"] {
        assert!(is_free(store, key));
    }
    postgres.ask(
        "CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
         CREATE TRIGGER forbid BEFORE DELETE ON lockrun.locks FOR EACH ROW WHEN (OLD.key = 'b') EXECUTE FUNCTION forbid()",
    );
    let output = other(store, &["prune", "--older-than", "0"]).run().exited(69).printed("a\n").said("not this one");
    assert_eq!(output.stderr().lines().count(), 1, "{output}");
    assert_eq!(postgres.ask("SELECT key FROM lockrun.locks ORDER BY key"), "b\nc\n");
});
