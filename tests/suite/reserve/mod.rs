//! `lockrun reserve`: each run with the next value of a sequence, which no other run has.

mod counting;
mod ends;
mod faults;
mod many;
mod program;
mod seen;
mod serials;
