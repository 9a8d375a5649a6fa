//! The recipe in docs/sequences.md: ticket serials from a program, sold by many at once into a table that wants each of
//! them only once.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::postgres::path_of_psql;
use crate::support::sequence::{reserve, reserved};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{Lockrun, Postgres, Store};

/// Sells one ticket as the recipe does, and then fails on request.
const SELL: &str = "psql -qX -v ON_ERROR_STOP=1 -v serial=\"$LOCKRUN_VALUE\" <<'END'
INSERT INTO ticket (serial) VALUES (:'serial');
END
";

const SELLERS: usize = 20;

/// Gives `sell` an empty table: in the locks' database, if the locks are in one.
#[track_caller]
fn shop(store: &Store, sell: impl FnOnce(&Postgres)) {
    let another = store.as_postgres().is_none().then(Postgres::start);
    let postgres = another.as_ref().or(store.as_postgres()).expect("one of the two");
    postgres.ask("CREATE TABLE ticket (serial text NOT NULL UNIQUE)");
    sell(postgres);
}

/// Returns the call that takes the next serial.
fn seller(store: &Store, postgres: &Postgres) -> Lockrun {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/next-serial");
    // Close to where the letters change.
    postgres.known_to(reserve(store, "AAAZ-9971")).env("PATH", path_of_psql()).arg("--next").arg(program)
}

fn sold(postgres: &Postgres) -> Vec<String> {
    postgres.ask("SELECT serial FROM ticket ORDER BY serial").lines().map(str::to_owned).collect()
}

/// Returns the first `count` serials.
fn serials(count: usize) -> Vec<String> {
    let before = (9971..=9999).map(|number| format!("AAAZ-{number}"));
    before.chain((1..).map(|number| format!("AABA-{number:04}"))).take(count).collect()
}

// "Ticket serials sold by 20 processes at once into a real table with a unique constraint: no violation", and no gap
// where nothing failed.
on_every_store!(twenty_sell_without_a_gap, |store| shop(store, |postgres| {
    let call = seller(store, postgres);
    for _ in 0..2 {
        let sellers: Vec<_> = (0..SELLERS).map(|_| call.clone().sh(SELL).spawn()).collect();
        for run in sellers {
            run.wait().exited(0).silent();
        }
    }
    assert_eq!(sold(postgres), serials(2 * SELLERS));
    assert_eq!(reserved(store), Vec::<String>::new());
}));

// The same where every fourth sale fails before it is made: still no violation, and the gaps are those of values that
// failed.
on_every_store!(twenty_sell_while_some_fail, |store| shop(store, |postgres| {
    let call = seller(store, postgres).args(["--ttl", "1h"]);
    let sellers: Vec<_> = (0..SELLERS)
        .map(|number| {
            let script = if number % 4 == 0 { "exit 9" } else { SELL };
            (number, call.clone().sh(script).spawn())
        })
        .collect();
    for (number, run) in sellers {
        run.wait().exited(if number % 4 == 0 { 9 } else { 0 }).silent();
    }
    let sold: BTreeSet<String> = sold(postgres).into_iter().collect();
    let kept: BTreeSet<String> = reserved(store).into_iter().collect();
    assert_eq!((sold.len(), kept.len()), (15, 5));
    assert_eq!(sold.union(&kept).cloned().collect::<Vec<_>>(), serials(SELLERS));
}));

// "Keep the unique constraint": it reveals a store that has forgotten its sequence.
on_every_lease_store!(the_constraint_catches_a_store_that_forgot, |store| shop(store, |postgres| {
    let call = seller(store, postgres).sh(SELL);
    call.run().exited(0).silent();
    store.server().forget_everything();
    let output = call.run().exited(3);
    assert!(output.stderr().contains("violates unique constraint"), "{output}");
    assert_eq!(sold(postgres), serials(1));
}));
