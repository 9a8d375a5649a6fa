//! What lockrun does beside running a command.

pub mod generate;
