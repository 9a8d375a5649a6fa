//! A run: what the command gets, how it is supervised, how it ends.

mod cgroups;
mod clean;
mod crontab;
mod descriptors;
mod events;
mod exit_status;
mod guardian;
mod hang_up;
mod idle;
mod leaderless;
mod look_ups;
mod nested;
mod old_kernels;
mod once_per;
mod orphaned;
mod outliving;
mod preexisting;
mod signals;
mod stalled;
mod suspended;
mod takeover;
mod terminal;
mod transparent;
mod unkillable;
mod watchdog;
mod without_proc;
