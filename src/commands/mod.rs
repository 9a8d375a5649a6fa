//! What lockrun does beside running a command.

pub mod doctor;
pub mod generate;
