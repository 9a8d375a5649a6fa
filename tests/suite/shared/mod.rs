//! Many readers or one writer.

mod by_hand;
mod faults;
mod in_turn;
mod random;
mod starvation;
