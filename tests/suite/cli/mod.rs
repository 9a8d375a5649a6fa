//! What can be typed and set, and what is refused before anything is touched.

mod bad_input;
mod config;
mod generated;
mod inputs;
mod keys;
