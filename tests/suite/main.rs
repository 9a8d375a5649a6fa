//! Black-box tests: the program itself against real files, real servers and real terminals.
//!
//! Above each test stands the sentence of the contract that it proves. A test that speaks of a lock runs on
//! every store (`on_every_store!`), so that each keeps the same promises.

mod support;

mod bad_input;
mod breaking;
mod broken_records;
mod by_hand;
mod cgroups;
mod clean;
mod config;
mod connections;
mod crontab;
mod descriptors;
mod directory;
mod doctor;
mod events;
mod exit_status;
mod faults;
mod generated;
mod guardian;
mod handed_on;
mod hang_up;
mod harness;
mod held;
mod idle;
mod inputs;
mod kept;
mod keys;
mod last_line;
mod leaderless;
mod lease;
mod look_ups;
mod min_hold;
mod misuse;
mod nested;
mod outliving;
mod prune;
mod queue;
mod queue_faults;
mod racing;
mod record;
mod redis_urls;
mod reserve;
mod round_trips;
mod serials;
mod signals;
mod slots;
mod slots_by_hand;
mod slots_faults;
mod slots_mixed;
mod slots_queue;
mod status;
mod store_errors;
mod strangers;
mod suspended;
mod terminal;
mod transparent;
mod turnstile;
mod unanswered;
mod waiting;
mod without_proc;
