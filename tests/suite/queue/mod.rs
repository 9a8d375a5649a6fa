//! A lock that is held, and waiting for it in turn.

mod faults;
mod hand_off;
mod held;
mod max_waiting;
mod order;
mod racing;
mod waiting;
