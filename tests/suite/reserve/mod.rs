//! `lockrun reserve`: gives each run the next value of a sequence, which no other run has.

mod counting;
mod ends;
mod faults;
mod many;
mod program;
mod seen;
mod serials;
