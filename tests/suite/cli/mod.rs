//! Options and settings, and which of them are refused before anything is touched.

mod bad_input;
mod bad_stores;
mod completions;
mod config_files;
mod generated;
mod habits;
mod hostile_input;
mod inputs;
mod keys;
mod precedence;
mod secrets;
mod slips;
mod trusted_certificates;
mod trusted_events;
mod trusted_files;
