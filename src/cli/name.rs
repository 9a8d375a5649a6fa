//! The names of the arguments, shared by the definitions and by the readers of their matches.
#![allow(missing_docs)]

pub const KEY: &str = "key";
pub const STORE: &str = "store";
pub const STORE_FILE: &str = "store-file";
pub const SLOTS: &str = "slots";
pub const SHARED: &str = "shared";
pub const EXCLUSIVE: &str = "exclusive";
pub const FAIL: &str = "fail";
pub const SKIP: &str = "skip";
pub const WAIT: &str = "wait";
pub const MAX_WAITING: &str = "max-waiting";
pub const CONFLICT: &str = "conflict-exit-code";
pub const TTL: &str = "ttl";
pub const RENEW_EVERY: &str = "renew-every";
pub const ONCE_PER: &str = "once-per";
pub const MIN_HOLD: &str = "min-hold";
pub const KEEP: &str = "keep";
pub const KILL_AFTER: &str = "kill-after";
pub const MAX_RUNTIME: &str = "max-runtime";
pub const ON_LOST: &str = "on-lost";
pub const DESCENDANTS: &str = "descendants";
pub const STORE_TIMEOUT: &str = "store-timeout";
pub const STORE_RETRY: &str = "store-retry";
pub const COMMAND_STRING: &str = "command";
pub const LABEL: &str = "label";
pub const EVENTS: &str = "events";
pub const VERBOSE: &str = "verbose";
pub const QUIET: &str = "quiet";
pub const COMMAND: &str = "COMMAND";
pub const KEY_WORD: &str = "KEY";

pub const TOKEN: &str = "token";
pub const JSON: &str = "json";
pub const METRICS: &str = "metrics";
pub const ONLY_HELD: &str = "held";
pub const EXPORT: &str = "export";
pub const FENCE: &str = "fence";
pub const NOW: &str = "now";
pub const OLDER_THAN: &str = "older-than";
pub const DONE: &str = "done";
pub const DRY_RUN: &str = "dry-run";
pub const SCHEMA: &str = "schema";

pub const FROM: &str = "from";
pub const STEP: &str = "step";
pub const NEXT: &str = "next";
pub const ON_FAILURE: &str = "on-failure";
