//! A run: what the command gets, how it is supervised, how it ends.

mod cgroups;
mod clean;
mod crontab;
mod descriptors;
mod events;
mod exit_status;
mod idle;
mod nested;
mod outliving;
mod signals;
mod strangers;
mod terminal;
mod transparent;
