//! A lock that is held, and waiting for it in turn.

mod faults;
mod handed_on;
mod held;
mod max_waiting;
mod order;
mod racing;
mod waiting;
