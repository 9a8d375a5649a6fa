//! The SQL of PostgreSQL's tables that `lockrun doctor` prints, and who may have put code into these tables.

use super::doctor::{call, doctor, finds, is_well};
use super::doctor_postgres::{psql, run_sql, use_lock, well_kept};
use crate::support::Lockrun;
use crate::support::lockrun::waiting_for_its_end;
use crate::support::ports::free_port;

// "A role that may not create: 69, then the printed SQL run by the owner makes it work": also with names that need
// quotes, and run twice.
#[test]
fn a_role_that_may_not_create() {
    let postgres = well_kept();
    postgres.ask("CREATE ROLE \"night \"\"jobs\"\"\" LOGIN; CREATE ROLE day LOGIN");
    let url = postgres.url_as("night%20%22jobs%22", "schema=Locks%20%22A%22%3B%20--");
    let refused = Lockrun::at(&url).args(["--key", "a"]).command(["true"]).run().exited(69);
    refused.said("lockrun doctor --schema");
    let output = doctor(&url).exited(69);
    finds(&output, "fail", &["may not create them", "lockrun doctor --schema"]);
    let printed = call(&url).arg("--schema").run().exited(0).silent();
    assert!(printed.stdout().lines().take(3).all(|line| line.starts_with("-- ")), "{printed}");
    run_sql(&postgres, &printed.stdout);
    use_lock(&url);
    is_well(doctor(&url), 11);
    let lock = Lockrun::at(&url).args(["--key", "held"]);
    let holder = waiting_for_its_end(&lock);
    run_sql(&postgres, &printed.stdout);
    lock.command(["true"]).run().exited(75);
    holder.finish().exited(0);
    // The next role needs only the grants.
    let other = postgres.url_as("day", "schema=Locks%20%22A%22%3B%20--");
    doctor(&other).exited(69);
    run_sql(&postgres, &call(&other).arg("--schema").run().exited(0).silent().stdout);
    is_well(doctor(&other), 11);
    is_well(doctor(&url), 11);
}

/// What a role `mallory` that may create schemas does to make others run its code, which records their names in
/// `mallory.victims`.
const MALLORY: &str = "CREATE ROLE mallory; CREATE ROLE clerk LOGIN; GRANT CREATE ON DATABASE postgres TO mallory;
    SET ROLE mallory;
    CREATE SCHEMA mallory; GRANT USAGE ON SCHEMA mallory TO public;
    CREATE TABLE mallory.victims (name text); GRANT INSERT ON mallory.victims TO public;
    CREATE FUNCTION mallory.trap() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO mallory.victims VALUES (current_user); RETURN NEW; END $$;
    CREATE SCHEMA team; GRANT ALL ON SCHEMA team TO public;
    ALTER DEFAULT PRIVILEGES IN SCHEMA team GRANT ALL ON TABLES TO public;
    CREATE TABLE team.version (version bigint PRIMARY KEY);
    RESET ROLE";

/// A trap on that table.
const TRAP: &str = "CREATE TRIGGER trap BEFORE INSERT ON team.version FOR EACH ROW EXECUTE FUNCTION mallory.trap()";

// "Whoever creates the schema first" cannot run code as the user who runs the printed SQL: here a superuser.
#[test]
fn the_schema_runs_no_code_of_others() {
    let postgres = well_kept();
    postgres.ask(MALLORY);
    let url = postgres.url_as("clerk", "schema=team");
    let script = call(&url).arg("--schema").run().exited(0).silent().stdout;
    let victims = || postgres.count("SELECT count(*) FROM mallory.victims");
    let untouched = |words: &[&str]| {
        let before = "SELECT relname, relowner FROM pg_class WHERE relnamespace = 'team'::regnamespace ORDER BY 1";
        let there = postgres.ask(before);
        let output = psql(&postgres, &script);
        assert_ne!(output.status, Some(0), "{output}");
        assert!(words.iter().all(|word| output.stderr().contains(word)), "{words:?}: {output}");
        assert_eq!((postgres.ask(before), victims()), (there, 0));
    };
    for trap in [
        TRAP,
        "CREATE TABLE team.locks (key text, state json)",
        "DROP TABLE team.version; CREATE VIEW team.version AS SELECT 1::bigint AS version WHERE false;
         CREATE RULE trap AS ON INSERT TO team.version DO INSTEAD INSERT INTO mallory.victims VALUES (current_user)",
        "DROP VIEW team.version",
    ] {
        postgres.ask(&format!("SET ROLE mallory; {trap}; RESET ROLE"));
        untouched(&["belongs to the role mallory", "SET ROLE mallory"]);
    }
    // Its tables are no better in another role's schema.
    postgres.ask("ALTER SCHEMA team OWNER TO postgres; GRANT CREATE ON SCHEMA team TO mallory");
    untouched(&["team.locks belongs to the role mallory"]);
    // Nor is what it has left on tables that now belong to others.
    postgres.ask("ALTER TABLE team.locks OWNER TO postgres");
    postgres.ask("CREATE TRIGGER trap BEFORE INSERT ON team.locks FOR EACH ROW EXECUTE FUNCTION mallory.trap()");
    untouched(&["team.locks has a trigger or a rule"]);
    postgres.ask("DROP TABLE team.locks; CREATE VIEW team.locks AS SELECT 1 AS one");
    untouched(&["team.locks is not an ordinary table"]);
    postgres.ask("DROP VIEW team.locks");
    // Without all that, the SQL works, whatever is first in the search path.
    postgres.ask(
        "CREATE FUNCTION mallory.current_setting(text) RETURNS text LANGUAGE sql AS
             $$ INSERT INTO mallory.victims VALUES (current_user) RETURNING 'team' $$;
         ALTER DATABASE postgres SET search_path = mallory, pg_catalog",
    );
    run_sql(&postgres, &script);
    use_lock(&url);
    is_well(doctor(&url), 11);
    assert_eq!(victims(), 0);
}

// "Run the SQL as that role": the owner of a schema creates its tables for others, even without the right to create
// schemas.
#[test]
fn the_owner_of_a_schema_runs_its_sql() {
    let postgres = well_kept();
    postgres.ask("CREATE ROLE \"the team\"; CREATE ROLE clerk LOGIN; CREATE SCHEMA lockrun AUTHORIZATION \"the team\"");
    let url = postgres.url_as("clerk", "");
    let script = call(&url).arg("--schema").run().exited(0).silent().stdout();
    let refused = psql(&postgres, script.as_bytes());
    assert!(refused.stderr().contains("SET ROLE \"the team\""), "{refused}");
    for _ in 0..2 {
        run_sql(&postgres, format!("SET ROLE \"the team\";\n{script}").as_bytes());
    }
    use_lock(&url);
    // The doctor names that owner, until the owner of the database owns the schema.
    let output = doctor(&url).exited(1);
    finds(
        &output,
        "warn",
        &["role \"the team\" owns lockrun, lockrun.locks", "trust it, or ALTER SCHEMA lockrun OWNER TO postgres"],
    );
    let text = output.stdout();
    let advice = text.lines().find_map(|line| line.split_once("trust it, or ")).expect("is there").1;
    postgres.ask(advice);
    is_well(doctor(&url), 11);
}

// A trigger, a rule or a view runs with the rights of the role that uses a lock: the doctor names it without triggering
// it.
#[test]
fn code_in_the_tables() {
    let postgres = well_kept();
    postgres.ask(MALLORY);
    let url = postgres.url_as("clerk", "schema=lockrun");
    run_sql(&postgres, &call(&url).arg("--schema").run().exited(0).silent().stdout);
    let insert = "INSERT INTO mallory.victims VALUES (current_user)";
    for (make, words) in [
        (
            "CREATE TRIGGER trap BEFORE INSERT ON lockrun.locks FOR EACH ROW EXECUTE FUNCTION mallory.trap()".to_owned(),
            "TRIGGER trap is on lockrun.locks",
        ),
        (format!("CREATE RULE \"a trap\" AS ON UPDATE TO lockrun.waiters DO ALSO {insert}"), "RULE \"a trap\" is on lockrun.waiters"),
        (
            "ALTER TABLE lockrun.version RENAME TO former; CREATE VIEW lockrun.version AS SELECT version FROM lockrun.former;
             GRANT SELECT ON lockrun.version TO clerk"
                .to_owned(),
            "lockrun.version is not an ordinary table",
        ),
    ] {
        is_well(doctor(&url), 11);
        postgres.ask(&make);
        let output = doctor(&url).exited(2);
        finds(&output, "fail", &[words, "no lock was tried"]);
        assert!(!output.stdout().contains("a lock was acquired"), "{output}");
        let text = output.stdout();
        let advice = text.lines().find(|line| line.contains(words)).expect("is there");
        let drop = &advice[advice.find("DROP ").expect("advice")..];
        postgres.ask(drop.split(',').next().expect("is there"));
    }
    assert_eq!(postgres.count("SELECT count(*) FROM mallory.victims"), 0);
    // The table has lost its place.
    let output = doctor(&url);
    finds(&output, "fail", &["may not create them"]);
    postgres.ask("ALTER TABLE lockrun.former RENAME TO version");
    is_well(doctor(&url), 11);
}

// "Prints the SQL, connects to nothing"; "bad combinations exit 64 before anything is touched".
#[test]
fn the_schema_is_printed_without_a_server() {
    let url = format!("postgres://clerk:hush@127.0.0.1:{}/jobs?sslmode=verify-full&ca=/nowhere", free_port());
    let doctor = Lockrun::bare().args(["doctor", "--schema"]);
    let typed = doctor.clone().args(["--store", &url]).run().exited(0).silent();
    assert!(typed.stdout().contains("TO \"clerk\";\n") && !typed.stdout().contains("hush"), "{typed}");
    let set = doctor.clone().env("LOCKRUN_STORE", &url).run().exited(0).silent();
    assert_eq!(set.stdout(), typed.stdout());
    for store in ["file:", "redis://127.0.0.1"] {
        doctor.clone().args(["--store", store]).run().exited(64).printed("").said("--store postgres://");
    }
    doctor.clone().run().exited(64).printed("");
    doctor.clone().args(["--store", "postgres://h"]).run().exited(64).printed("");
    doctor.clone().args(["--store", &url, "--store-timeout", "0"]).run().exited(64).printed("");
    doctor.clone().args(["--store", &url, "word"]).run().exited(64).printed("");
    Lockrun::bare().args(["doctor", "--schema=x", "--store", &url]).run().exited(64).printed("");
    Lockrun::bare().args(["status", "--schema", "--store", &url]).run().exited(64).printed("");
}
