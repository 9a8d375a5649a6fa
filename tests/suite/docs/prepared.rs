//! What the blocks of the documentation need before they can run, and those that cannot run here.

use super::pages::Block;

/// Blocks that are only parsed, by their first lines: they build or install lockrun, or need many servers.
const PARSED: [&str; 4] = [
    "lockrun --store redis+sentinel://sentinel-1,sentinel-2,sentinel-3/mymaster --key nightly-report -- ./report.sh",
    "sudo apt-get install -y git make gcc libc6-dev curl",
    "cargo run --release -- --key nightly-report -- ./examples/report.sh",
    "make                # the release binary",
];

/// What a block needs.
pub(super) struct Preparation {
    pub(super) page: &'static str,
    /// Its first line begins with this.
    pub(super) first: &'static str,
    /// Commands of a shell, whose variables the block has.
    pub(super) before: &'static str,
    /// What is called otherwise here; HOME stands for the directory of the test.
    pub(super) replaced: &'static [(&'static str, &'static str)],
    /// Options of the Redis that is the block's store, if it is to be one.
    pub(super) redis: Option<&'static [&'static str]>,
    /// Whether psql finds a PostgreSQL.
    pub(super) postgres: bool,
}

impl Preparation {
    pub(super) const NONE: Preparation =
        Preparation { page: "", first: "", before: "", replaced: &[], redis: None, postgres: false };
}

/// Options of a Redis that keeps its data.
pub(super) const DURABLE: &[&str] = &["--appendonly", "yes"];

const ALL: [Preparation; 9] = [
    Preparation {
        page: "docs/doctor.md",
        first: "$ lockrun doctor --store redis://localhost",
        redis: Some(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]),
        ..Preparation::NONE
    },
    Preparation {
        page: "docs/guarantees.md",
        first: "# The table has one more column",
        before: "psql -qXc 'CREATE TABLE report (id int, total int, fence bigint NOT NULL DEFAULT 0)'
            psql -qXc 'INSERT INTO report VALUES (1, 0, 0)'
            LOCKRUN_FENCE=1795235400021 total=5",
        postgres: true,
        ..Preparation::NONE
    },
    Preparation {
        page: "docs/recipes.md",
        first: "# On the other machine",
        before: "token=$(lockrun acquire --key deploy-production)",
        ..Preparation::NONE
    },
    Preparation {
        page: "docs/recipes.md",
        first: "$ lockrun status",
        before: "lockrun --key backup -- ./backup.sh
            lockrun --key deploy-production -- true
            lockrun --key nightly-report -- sh -c 'exit 3' || :
            printf '#!/bin/sh\\nexec sleep 600\\n' >backup.sh
            lockrun --key backup -- ./backup.sh & until_held
            lockrun --key backup --wait -- ./backup.sh & until_waiting 1
            lockrun --key backup --wait -- ./backup.sh & until_waiting 2",
        redis: Some(DURABLE),
        ..Preparation::NONE
    },
    Preparation {
        page: "docs/recipes.md",
        first: "# Did the report run within the last day",
        before: "lockrun --key nightly-report -- true",
        ..Preparation::NONE
    },
    Preparation {
        page: "docs/recipes.md",
        first: "$ lockrun break --key backup --fence",
        before: "printf '#!/bin/sh\\nexec sleep 600\\n' >backup.sh
            lockrun --key backup -- ./backup.sh 2>/dev/null & until_held
            fence=$(lockrun status backup --json | jq '.[0].fence')",
        replaced: &[("1795235400021", "$fence")],
        redis: Some(DURABLE),
        ..Preparation::NONE
    },
    Preparation {
        page: "docs/recipes.md",
        first: "lockrun --key import --slots 3",
        before: "file=import.csv",
        ..Preparation::NONE
    },
    Preparation {
        page: "docs/sequences.md",
        first: "lockrun reserve --key tickets",
        before: "psql -qXc 'CREATE TABLE ticket (serial text UNIQUE)'",
        postgres: true,
        ..Preparation::NONE
    },
    Preparation {
        page: "docs/files.md",
        first: "install -d -o root -g deploy",
        replaced: &[("-g deploy", "-g root"), ("group=deploy", "group=root"), ("/var/lib/locks", "HOME/shared")],
        ..Preparation::NONE
    },
];

/// Returns whether this block is only parsed.
pub(super) fn is_parsed_only(block: &Block) -> bool {
    PARSED.contains(&block.first_line())
}

/// Returns what this block needs.
pub(super) fn of(block: &Block) -> &'static Preparation {
    ALL.iter().find(|preparation| preparation.is_for(block)).unwrap_or(&Preparation::NONE)
}

impl Preparation {
    fn is_for(&self, block: &Block) -> bool {
        block.page == self.page && block.text.starts_with(self.first)
    }
}

// Nothing here is for a block that is there no more.
#[test]
fn every_preparation_is_for_one_block() {
    let blocks: Vec<Block> = super::pages::all().iter().flat_map(super::pages::Page::blocks).collect();
    for preparation in &ALL {
        let count = blocks.iter().filter(|block| preparation.is_for(block)).count();
        assert_eq!(count, 1, "{}: {}", preparation.page, preparation.first);
    }
    for first in PARSED {
        assert_eq!(blocks.iter().filter(|block| block.first_line() == first).count(), 1, "{first}");
    }
}
