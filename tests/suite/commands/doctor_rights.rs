//! Which rights of a role in PostgreSQL are missing: `lockrun doctor` names each, and how to grant it.

use super::doctor::{doctor, finds, is_well};
use super::doctor_postgres::{follow, use_lock, well_kept};
use crate::support::{Lockrun, Output, Postgres};

/// The rights that a role needs if it may not create the tables, as `(object, rights)`.
const NEEDED: [(&str, &[&str]); 4] = [
    ("SCHEMA lockrun", &["USAGE"]),
    ("lockrun.version", &["SELECT"]),
    ("lockrun.locks", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("lockrun.waiters", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
];

/// Returns a server with a role that has only these rights, and its URL.
#[track_caller]
fn with_a_clerk() -> (Postgres, String) {
    let postgres = well_kept();
    use_lock(&postgres.url());
    postgres.ask("CREATE ROLE clerk LOGIN");
    for (object, rights) in NEEDED {
        postgres.ask(&format!("GRANT {} ON {object} TO clerk", rights.join(", ")));
    }
    let url = postgres.url_as("clerk", "");
    is_well(doctor(&url), 11);
    (postgres, url)
}

fn failures(output: &Output) -> usize {
    output.stdout().lines().filter(|line| line.starts_with("fail")).count()
}

// "Exactly what is missing is named, together with the GRANT that would give it": each single right, and the words do
// give it.
#[test]
fn a_role_that_lacks_one_right() {
    let (postgres, url) = with_a_clerk();
    for (object, rights) in NEEDED {
        for right in rights {
            postgres.ask(&format!("REVOKE {right} ON {object} FROM clerk"));
            let output = doctor(&url).exited(69);
            let table = object.rsplit(['.', ' ']).next().expect("a name");
            finds(&output, "fail", &["role \"clerk\" lacks", right, table]);
            assert_eq!(failures(&output), 1, "{output}");
            follow(&postgres, &output, "lacks");
            let words = ["--key", "rights", "--wait", "1"];
            Lockrun::at(&url).args(words).command(["true"]).run().exited(0).silent();
        }
    }
    is_well(doctor(&url), 11);
}

// Every role may call this function, unless an administrator has revoked that: a hand-off would fail.
#[test]
fn a_role_that_may_not_call_a_function() {
    let (postgres, url) = with_a_clerk();
    postgres.revoke_call("pg_notify");
    let output = doctor(&url).exited(69);
    let lacks = "role \"clerk\" lacks EXECUTE on FUNCTION pg_catalog.pg_notify";
    finds(&output, "fail", &[lacks, "a superuser grants"]);
    assert_eq!(failures(&output), 1, "{output}");
    follow(&postgres, &output, "lacks EXECUTE");
    is_well(doctor(&url), 11);
}

// "No weaker lock by accident": a lock whose row is hidden would look free.
#[test]
fn row_level_security() {
    let (postgres, url) = with_a_clerk();
    for table in ["version", "locks", "waiters"] {
        postgres.ask(&format!("ALTER TABLE lockrun.{table} ENABLE ROW LEVEL SECURITY"));
        let output = doctor(&url).exited(69);
        finds(&output, "fail", &["row-level security", table, "would hide locks from role \"clerk\""]);
        for call in
            [Lockrun::bare().args(["status", "--store", &url]), Lockrun::at(&url).key("first").command(["true"])]
        {
            call.run().exited(69).printed("").said("lockrun doctor names the right");
        }
        follow(&postgres, &output, "row-level security");
        is_well(doctor(&url), 11);
    }
}
