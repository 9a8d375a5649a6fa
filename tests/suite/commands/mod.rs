//! The other commands.

mod breaking;
mod by_hand;
mod doctor;
mod kept;
mod min_hold;
mod prune;
mod status;
