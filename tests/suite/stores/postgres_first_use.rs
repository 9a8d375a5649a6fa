//! The tables of a PostgreSQL store: who creates them, for whom, and which version they have.

use std::time::Duration;

use crate::support::crowd;
use crate::support::hand::{acquire, is_held, release, status, token, until_waiting};
use crate::support::lockrun::waiting_for_its_end;
use crate::support::proxy::Mode;
use crate::support::store::on_postgres;
use crate::support::{Holder, LONG, Lockrun, Postgres, Store, eventually};

/// Returns what `lockrun doctor --schema` prints for the store at this URL.
#[track_caller]
fn printed_schema(url: &str) -> String {
    Lockrun::bare().args(["doctor", "--schema", "--store", url]).run().exited(0).silent().stdout()
}

// "Safely when a hundred first users come at once": all of them run, and those that want the same lock run one after
// the other.
on_postgres!(a_hundred_first_users_at_once, |store, postgres| {
    let _turn = crowd::turn();
    let users: Vec<_> = (0..100)
        .map(|number| {
            let key = if number % 5 == 0 { "shared".to_owned() } else { format!("own-{number}") };
            let patient = ["--wait", "--ttl", "10m", "--store-timeout", "60s"];
            Lockrun::new(store).key(key).args(patient).command(["echo", "ran"]).spawn()
        })
        .collect();
    for user in users {
        user.wait().exited(0).printed("ran\n").silent();
    }
    assert_eq!(postgres.count("SELECT count(*) FROM lockrun.locks"), 81);
    assert_eq!(postgres.count("SELECT count(*) FROM lockrun.version"), 1);
});

// "Safely when a hundred first users come at once": what another has committed is visible a moment before a session's
// cached names are invalidated. That moment cannot be prolonged, so a trigger gives the server's answer: the schema
// exists, and there is none of this name.
on_postgres!(a_schema_that_is_noticed_late, |store, postgres| {
    postgres.ask("CREATE SEQUENCE public.attempts");
    postgres.ask(
        "CREATE FUNCTION public.is_late() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF nextval('public.attempts') <= 2 THEN RAISE 'no such schema' USING ERRCODE = '3F000'; END IF; END $$",
    );
    postgres.ask(
        "CREATE EVENT TRIGGER late ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.is_late()",
    );
    postgres.ask("CREATE SCHEMA lockrun");
    Lockrun::new(store).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    assert!(postgres.count("SELECT nextval('public.attempts')") > 3);
});

// A command that only looks finds tables that a first user creates at the same moment: the answer that there are none
// is on its way when they appear.
on_postgres!(tables_come_while_somebody_looks, |store, postgres| {
    let proxy = &store.proxy();
    proxy.set(Mode::Delay(Duration::from_millis(700)));
    let look = |words: &[&str]| Lockrun::bare().args([words[0], "--store", &proxy.url()]).args(&words[1..]).spawn();
    for words in [&["status", "--key", "k", "--json"][..], &["prune", "--older-than", "0"]] {
        let before = proxy.flights();
        let looks = look(words);
        // It has logged in, and asks.
        eventually(LONG, "it has asked", || proxy.flights() >= before + 2);
        Lockrun::new(store).key("other").command(["true"]).run().exited(0).silent();
        looks.wait().exited(0).silent();
        postgres.ask("DROP SCHEMA lockrun CASCADE");
    }
});

// A database with another encoding stores any command line, and a key if it has the characters.
on_postgres!(a_database_with_another_encoding, |store, postgres| {
    const WORDS: &str = "ł€ 日本 😀";
    for (encoding, has_all) in [("LATIN1", false), ("SQL_ASCII", true)] {
        let database = encoding.to_lowercase();
        postgres.create_database(&format!("{database} ENCODING '{encoding}' LOCALE 'C'"));
        let url = store.url().replacen("/postgres?", &format!("/{database}?"), 1);
        let acquires = Lockrun::bare().args(["acquire", "--store", &url, "--ttl", "2s", "--store-timeout", "1900ms"]);
        acquires.key("clé").run().exited(0);
        // One waiter reads the other's row, and when a lease ends.
        let waiters = [(); 2].map(|()| Lockrun::at(&url).key("clé").arg("--wait").command(["echo", WORDS]).spawn());
        for waiter in waiters {
            waiter.wait().exited(0).printed(&format!("{WORDS}\n")).silent();
        }
        let script = format!("echo ready; read line || : {WORDS}");
        let mut holder = Lockrun::at(&url).key("clé").sh(&script).with_open_input();
        holder.run.wait_for_line("ready");
        let status = Lockrun::bare().args(["status", "--store", &url, "--json"]).run();
        assert!(status.stdout().contains("clé") && status.stdout().contains(WORDS), "{status}");
        holder.finish().exited(0).silent();
        let other = Lockrun::at(&url).key("łódź").command(["echo", "ran"]).run();
        if has_all {
            other.exited(0).printed("ran\n").silent();
        } else {
            other.exited(69).printed("").said("UTF8");
        }
    }
});

// "One lock a key": two keys for which a database's encoding has the same bytes do not share a row. One of them cannot
// be used there.
on_postgres!(keys_with_the_same_bytes, |store, postgres| {
    postgres.create_database("japan ENCODING 'EUC_JP' LOCALE 'C'");
    let url = store.url().replacen("/postgres?", "/japan?", 1);
    let call = |key: &str, words: &[&str]| Lockrun::bare().args(words).args(["--store", &url, "--key", key]).run();
    let by_hand = ["acquire", "--token", "t", "--ttl", "10m"];
    let [right, wrong] = if call("¦", &by_hand).status == Some(0) { ["¦", "￤"] } else { ["￤", "¦"] };
    call(right, &by_hand).exited(0);
    for words in [&by_hand[..], &["status"], &["break"], &["renew", "--token", "t"], &["release", "--token", "t"]] {
        call(wrong, words).exited(69).printed("").said("UTF8");
    }
    call(wrong, &["prune", "--older-than", "0"]).exited(69);
    call(right, &["renew", "--token", "t"]).exited(0).silent();
    call(right, &["release", "--token", "t"]).exited(0).silent();
});

// "Tables appear on first use" of whatever is used first.
#[test]
fn whatever_is_used_first() {
    let nothing = |postgres: &Postgres| postgres.ask("SELECT nspname FROM pg_namespace WHERE nspname = 'lockrun'");
    let store = Store::postgres();
    let postgres = store.as_postgres().expect("it is one");
    // A command that only looks creates nothing.
    assert!(!is_held(&store, "k"));
    Lockrun::other("prune", &store).args(["--older-than", "0"]).run().exited(0).printed("").silent();
    assert_eq!(nothing(postgres), "");
    for words in [&["renew", "--key", "k", "--token", "t"][..], &["release", "--key", "k", "--token", "t"]] {
        Lockrun::bare().args(words).args(["--store", &store.url()]).run().exited(79);
    }
    let by_hand = token(&store, "k", &[]);
    release(&store, "k", &by_hand).exited(0).silent();
    store.server().forget_everything();
    let reserved = Lockrun::bare().args(["reserve", "--from", "1", "--key", "s", "--store", &store.url()]);
    reserved.command(["printenv", "LOCKRUN_VALUE"]).run().exited(0).printed("1\n").silent();
}

/// Returns the URL of a user who may use what exists in the database, but create nothing in it.
fn guest(postgres: &Postgres) -> String {
    postgres.ask("CREATE ROLE guest LOGIN");
    postgres.url_as("guest", "sslmode=disable")
}

// "Otherwise 69 with a message that names `lockrun doctor --schema`, which prints the SQL and the GRANTs": what it
// prints is enough for all that lockrun does.
on_postgres!(a_role_that_may_not_create_tables, |store, postgres| {
    let url = guest(postgres);
    for words in [&["--key", "k", "--", "echo", "ran"][..], &["--key", "k", "--wait", "--", "echo", "ran"]] {
        let output = Lockrun::at(&url).args(words).run().exited(69).printed("").said("lockrun doctor --schema");
        assert!(output.stderr().contains("\"guest\""), "{output}");
    }
    Lockrun::bare().args(["acquire", "--key", "k", "--store", &url]).run().exited(69).said("lockrun doctor --schema");
    let script = printed_schema(&url);
    assert!(script.contains("GRANT") && script.contains("guest"), "{script}");
    // Running it twice does no harm.
    for _ in 0..2 {
        postgres.ask(&script);
    }
    let mut holder = waiting_for_its_end(&Lockrun::at(&url).key("k"));
    let waiter = Lockrun::at(&url).key("k").arg("--wait").command(["echo", "ran"]).spawn();
    until_waiting(store, "k", 1);
    let other = |words: &[&str]| Lockrun::bare().args(words).args(["--store", &url]).run();
    other(&["status"]).exited(0).silent();
    assert!(!holder.run.has_ended());
    holder.finish().exited(0);
    waiter.wait().exited(0).printed("ran\n").silent();
    let by_hand = other(&["acquire", "--key", "hand"]).exited(0).silent().stdout();
    other(&["renew", "--key", "hand", "--token", by_hand.trim_end()]).exited(0);
    other(&["break", "--key", "hand"]).exited(0);
    other(&["prune", "--older-than", "0"]).exited(0).printed("hand\nk\n").silent();
    let reserve = Lockrun::bare().args(["reserve", "--from", "7", "--key", "s", "--store", &url]);
    reserve.command(["printenv", "LOCKRUN_VALUE"]).run().exited(0).printed("7\n").silent();
});

// The same in a schema whose name has to be quoted.
on_postgres!(a_schema_of_another_name, |store, postgres| {
    let name = "Locks of \"us\" & 'them'";
    let url = |user: &str| postgres.url_as(user, "sslmode=disable&schema=Locks%20of%20%22us%22%20%26%20'them'");
    let held = |url: &str| Lockrun::at(url).key("k").command(["echo", "ran"]).run();
    held(&url("postgres")).exited(0).printed("ran\n").silent();
    let schemas = postgres.ask("SELECT nspname FROM pg_namespace WHERE nspname ILIKE '%lock%'");
    assert_eq!(schemas, format!("{name}\n"));
    // Another schema has other locks.
    let _holder = Holder::new(store, "k");
    held(&url("postgres")).exited(0).printed("ran\n").silent();
    postgres.ask("DROP SCHEMA \"Locks of \"\"us\"\" & 'them'\" CASCADE");
    guest(postgres);
    held(&url("guest")).exited(69).said("lockrun doctor --schema");
    postgres.ask(&printed_schema(&url("guest")));
    held(&url("guest")).exited(0).printed("ran\n").silent();
});

// If a role has lost a right, the message says which kind it needs, and its command does not run.
on_postgres!(a_role_that_lacks_a_right, |_store, postgres| {
    let url = guest(postgres);
    postgres.ask(&printed_schema(&url));
    for right in ["SELECT", "UPDATE", "INSERT"] {
        postgres.ask(&format!("REVOKE {right} ON lockrun.locks FROM guest"));
        let run = || Lockrun::at(&url).key(right).command(["echo", "ran"]).run();
        run().exited(69).printed("").said("permission denied").said("lockrun doctor names the right");
        postgres.ask(&format!("GRANT {right} ON lockrun.locks TO guest"));
        run().exited(0).printed("ran\n").silent();
    }
});

// "With a version, so that a later lockrun can migrate": tables that a later one has migrated are not touched.
on_postgres!(tables_of_a_later_version, |store, postgres| {
    let its = token(store, "k", &[]);
    postgres.ask("UPDATE lockrun.version SET version = version + 1");
    Lockrun::new(store).key("other").command(["echo", "ran"]).run().exited(69).printed("").said("version");
    release(store, "k", &its).exited(69).said("version");
    postgres.ask("UPDATE lockrun.version SET version = version - 1");
    assert!(is_held(store, "k"));
    assert_eq!(postgres.count("SELECT count(*) FROM lockrun.locks"), 1);
});

// "Keys whose CRC32 collide stay apart": each has its own row, its own queue, and is woken for itself.
on_postgres!(keys_whose_checksums_collide, |store, _postgres| {
    let [first, second] = ["plumless", "buckeroo"].map(|key| Holder::new(store, key));
    let waits = |key: &str| {
        let waiter = Lockrun::new(store).key(key).args(["--wait", "-q"]).command(["echo", key]).spawn();
        until_waiting(store, key, 1);
        waiter
    };
    let [waiter, mut other] = ["plumless", "buckeroo"].map(waits);
    first.end();
    waiter.wait().exited(0).printed("plumless\n");
    acquire(store, "buckeroo", &[]).run().exited(75);
    assert!(!other.has_ended());
    second.end();
    other.wait().exited(0).printed("buckeroo\n");
    assert_eq!(status(store, "plumless")["held"], false);
});
