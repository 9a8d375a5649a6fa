//! The examples of the help and the manual. Each is run by a test.

use super::Subcommand::{self, Acquire, Break, Doctor, Prune, Release, Renew, Reserve, Status};
use super::text::Table;

/// Examples of a run, and what each does.
pub const OF_A_RUN: [(&str, &str); 3] = [
    ("lockrun --key backup -- ./backup.sh", "Run a backup, unless one is running on this machine"),
    ("lockrun --key deploy --wait 10m -- ./deploy.sh", "Wait in turn for the last deployment, ten minutes at most"),
    (
        "lockrun --store redis://HOST --key report --wait 5m --once-per 20h -- report.sh",
        "The same crontab on all servers: one of them runs the job, once a day",
    ),
];

/// Returns examples of a subcommand, and what each does.
pub const fn of(subcommand: Subcommand) -> &'static Table {
    match subcommand {
        Acquire => &[
            (
                "eval \"$(lockrun acquire --key index --ttl 10m --export)\"",
                "Acquire a lock for the rest of a script; `lockrun release` needs no argument then",
            ),
            ("token=$(lockrun acquire --key deploy --wait 20m --ttl 30m)", "Wait for a lock, and keep its token"),
        ],
        Renew => &[
            ("lockrun renew deploy --token \"$token\"", "Let the lease last for its full length from now"),
            ("lockrun renew --ttl 1h", "The same for an hour, with key and token from LOCKRUN_KEY and LOCKRUN_TOKEN"),
        ],
        Release => &[
            ("lockrun release deploy --token \"$token\"", "Release a lock by its token"),
            (
                "trap 'lockrun release' EXIT",
                "Release it when the script ends, with key and token from LOCKRUN_KEY and LOCKRUN_TOKEN",
            ),
        ],
        Reserve => &[
            (
                "lockrun reserve --key invoices --from 1 -- ./invoice.sh",
                "Number invoices 1, 2, 3 ..., however many run at once",
            ),
            (
                "lockrun reserve --key tickets --from A-01 --next ./next-serial -- ./sell.sh",
                "Let a program compute the next value",
            ),
        ],
        Status => &[
            ("lockrun status", "List all locks of the store"),
            ("lockrun status backup || echo held", "Show one lock; the status is 75 if it is held"),
            ("lockrun status --json | jq -r '.[] | select(.held).key'", "Print the names of the locks that are held"),
        ],
        Break => &[
            (
                "lockrun break backup --fence 1795235400021",
                "Stop the run with this fence, as shown by `lockrun status`, and let the next one start",
            ),
            ("lockrun break backup --now", "Free the lock of a machine that is gone for ever"),
        ],
        Doctor => &[
            ("lockrun doctor --store redis://HOST", "Look at a store from the machine on which the jobs run"),
            (
                "lockrun doctor --schema --store postgres://USER@HOST/DB >lockrun.sql",
                "Print the SQL for a database in which the user may not create tables",
            ),
        ],
        Prune => &[
            ("lockrun prune --older-than 90d --dry-run", "List locks that have not been used for 90 days"),
            ("lockrun prune --older-than 90d", "Remove them"),
        ],
    }
}

/// Formats examples, each below its description.
pub fn listed(rows: &Table) -> String {
    let one = |(command, meaning): &(&str, &str)| format!("\n  # {meaning}\n  {command}");
    format!("Examples:{}", rows.iter().map(one).collect::<Vec<_>>().join("\n"))
}
