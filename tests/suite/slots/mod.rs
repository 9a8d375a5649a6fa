//! Several holders at once.

mod by_hand;
mod faults;
mod mixed;
mod number;
mod order;
