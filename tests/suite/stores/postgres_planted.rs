//! What another role plants in a PostgreSQL database: none of its code runs with the rights of the role that uses a
//! lock.

use crate::support::postgres::Setup;
use crate::support::{Lockrun, Postgres};

/// Objects of the role `evil` under the names that the server's own have, in each schema that is searched by default,
/// and one that fits the values better. Each writes to the server's log who has run it.
const PLANTED: &str = "
    CREATE ROLE evil LOGIN; CREATE ROLE app LOGIN;
    GRANT CREATE ON DATABASE postgres TO app; GRANT CREATE ON SCHEMA public TO evil;
    CREATE SCHEMA app AUTHORIZATION evil; GRANT USAGE ON SCHEMA app TO PUBLIC;
    SET ROLE evil;
    CREATE FUNCTION app.caught() RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN RAISE LOG 'caught %', current_user; RETURN true; END $$;
    DO $$
    DECLARE
        place text; name text; one text; other text;
    BEGIN
        FOREACH place IN ARRAY ARRAY['app', 'public'] LOOP
            FOREACH name IN ARRAY ARRAY['name', 'text', 'int8', 'int4', 'bool', 'json', 'oid', 'regclass', 'regtype', 'regnamespace',
                                        'regprocedure', 'timestamptz'] LOOP
                EXECUTE format('CREATE DOMAIN %I.%I AS pg_catalog.%2$I CHECK (app.caught())', place, name);
            END LOOP;
            FOREACH name IN ARRAY ARRAY['=', '<', '>', '<=', '>=', '<>'] LOOP
                FOREACH one IN ARRAY ARRAY['text', 'name', 'int8', 'int4', 'oid', 'bool', '\"char\"'] LOOP
                    FOREACH other IN ARRAY ARRAY['text', 'name', 'int8', 'int4', 'oid', 'bool', '\"char\"'] LOOP
                        EXECUTE format('CREATE OR REPLACE FUNCTION %I.fits(pg_catalog.%s, pg_catalog.%s) RETURNS pg_catalog.bool
                            LANGUAGE sql AS ''SELECT app.caught()''', place, one, other);
                        EXECUTE format('CREATE OPERATOR %I.%s (LEFTARG = pg_catalog.%s, RIGHTARG = pg_catalog.%s, FUNCTION = %1$I.fits)',
                            place, name, one, other);
                    END LOOP;
                END LOOP;
            END LOOP;
            FOREACH name IN ARRAY ARRAY['now()', 'clock_timestamp()', 'pg_is_in_recovery()', 'pg_backend_pid()', 'pg_postmaster_start_time()',
                'current_setting(text)', 'current_setting(text, bool)', 'set_config(text, text, bool)', 'has_function_privilege(oid, text)',
                'pg_notify(text, text)', 'to_hex(int8)', 'to_regclass(text)', 'pg_try_advisory_xact_lock_shared(int8)',
                'pg_advisory_lock(int8)', 'pg_advisory_unlock_all()', 'pg_advisory_xact_lock(int8)', 'quote_ident(text)',
                'pg_get_userbyid(oid)', 'current_database()', 'pg_logical_emit_message(bool, text, text)', 'unnest(text[])',
                'pg_stat_get_activity(int4)', 'pg_stat_get_db_numbackends(oid)'] LOOP
                EXECUTE format('CREATE FUNCTION %I.%s RETURNS pg_catalog.text LANGUAGE sql AS ''SELECT app.caught()::pg_catalog.text''',
                    place, name);
            END LOOP;
        END LOOP;
    END $$;
    RESET ROLE;
    ALTER ROLE app SET search_path = \"$user\", public, pg_catalog";

// "Names mean the server's own": in every subcommand, also the first that is used, and at a standby.
#[test]
fn no_code_of_another_role_runs() {
    let settings = vec!["log_min_messages=log".to_owned()];
    let postgres = Postgres::with(&Setup { settings, ..Setup::default() });
    postgres.ask(PLANTED);
    let caught = || postgres.log().matches("caught app").count();
    // It works where it is not avoided.
    let walk_in = || {
        postgres
            .ask("SET ROLE app; SET search_path = app, pg_catalog; SELECT 'x'::name; RESET ROLE; RESET search_path");
        let count = caught();
        assert!(count > 0, "the traps do not work");
        count
    };
    let before = walk_in();
    let url = postgres.url_as("app", "sslmode=disable");
    let uses: [&[&str]; 9] = [
        &["run", "--key", "k", "--", "true"],
        &["run", "--key", "k", "--wait", "--store-retry", "0", "--max-waiting", "5", "--", "true"],
        &["status", "--json"],
        &["status", "--key", "k"],
        &["acquire", "--key", "by-hand", "--token", "t"],
        &["renew", "--key", "by-hand", "--token", "t"],
        &["break", "--key", "by-hand"],
        &["prune", "--older-than", "0"],
        &["doctor"],
    ];
    let call = |before: usize, words: &[&str]| {
        let words = words.strip_prefix(&["run"]).unwrap_or(words);
        let output = Lockrun::bare().env("LOCKRUN_STORE", &url).args(words).run();
        assert_eq!(caught(), before, "{words:?}: {output}");
        output
    };
    for first in uses {
        let output = call(before, first);
        assert!(matches!(output.status, Some(0 | 1 | 2 | 79)), "{output}");
        for words in uses {
            call(before, words);
        }
        // A waiter is woken.
        let mut holder = Lockrun::at(&url).key("queue").sh("echo ready; read line || :").with_open_input();
        holder.run.wait_for_line("ready");
        let waiter = Lockrun::at(&url).key("queue").arg("--wait").command(["true"]).spawn();
        let waiting = || postgres.count("SELECT count(*) FROM lockrun.waiters");
        crate::support::eventually(crate::support::LONG, "it waits", || waiting() == 1);
        holder.finish().exited(0);
        waiter.wait().exited(0);
        assert_eq!(caught(), before, "a waiter");
        postgres.ask("DROP SCHEMA lockrun CASCADE");
    }
    let script = Lockrun::bare().args(["doctor", "--schema", "--store", &url]).run().exited(0).silent().stdout();
    postgres.ask("ALTER ROLE postgres SET search_path = app, public, pg_catalog");
    postgres.ask(&script);
    assert_eq!(postgres.log().matches("caught postgres").count(), 0, "the script");
    postgres.demote();
    // The server has begun a new log.
    let before = walk_in();
    for words in uses {
        call(before, words);
    }
}

// A role's own time-outs do not end its requests before lockrun has set others.
#[test]
fn time_outs_of_the_role() {
    let store = crate::support::Store::postgres();
    let postgres = store.as_postgres().expect("it is one");
    let proxy = store.proxy();
    assert!(crate::support::holder::is_free(&store, "k"));
    postgres.ask(
        "ALTER ROLE postgres SET idle_in_transaction_session_timeout = 1; ALTER ROLE postgres SET lock_timeout = 1;
         ALTER ROLE postgres SET tcp_user_timeout = 1",
    );
    // The server has what begins a transaction long before the rest comes.
    proxy.set(crate::support::proxy::Mode::PauseAt("set_config", std::time::Duration::from_millis(300)));
    Lockrun::at(&proxy.url()).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
}
