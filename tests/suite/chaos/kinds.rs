//! What can go wrong.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::workers::Who;
use crate::support::proxy::Mode;

/// What can go wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Processes of a run get a signal, all at once.
    Signal(&'static [Who], Signal),
    /// They are stopped for a while.
    Stop(&'static [Who]),
    /// The network of a host behaves so for a while.
    Network(Mode),
    /// A server answers nothing for a while.
    Pause,
    /// A server is killed, and started again after a while.
    Kill,
    /// A server closes all connections.
    HangUp,
    /// Redis forgets the scripts that it knows.
    ForgetScripts,
    /// A replica takes the place of its primary on request.
    FailOver,
    /// The replicas of a primary get nothing more for a while; then it is killed, and started again after another
    /// while.
    LoseWrites,
    /// A primary goes on, and neither Sentinels nor replicas reach it for a while.
    CutOff,
    /// The hash slot of a lock moves to another primary.
    MoveSlot,
    /// The disk of the store is full for a while, and what is kept of locks that are free is removed.
    FillDisk,
}

/// What can happen to every run.
pub(super) const TO_RUNS: [Fault; 9] = [
    Fault::Signal(&[Who::Lockrun], Signal::SIGKILL),
    Fault::Signal(&[Who::Guardian], Signal::SIGKILL),
    Fault::Signal(&[Who::Command], Signal::SIGKILL),
    Fault::Signal(&[Who::Lockrun, Who::Guardian], Signal::SIGKILL),
    Fault::Signal(&[Who::Lockrun], Signal::SIGTERM),
    Fault::Stop(&[Who::Lockrun]),
    Fault::Stop(&[Who::Guardian]),
    Fault::Stop(&[Who::Command]),
    Fault::Stop(&[Who::Lockrun, Who::Guardian]),
];

/// What can happen to the network of a host.
pub(super) const TO_NETWORKS: [Fault; 6] = [
    Fault::Network(Mode::Swallow),
    Fault::Network(Mode::SwallowReplies),
    Fault::Network(Mode::SwallowAnswers),
    Fault::Network(Mode::Reset),
    Fault::Network(Mode::Refuse),
    Fault::Network(Mode::Delay(Duration::from_millis(200))),
];

/// What can happen to a server that nobody replaces.
pub(super) const TO_SERVERS: [Fault; 4] = [Fault::Pause, Fault::Kill, Fault::HangUp, Fault::ForgetScripts];

/// What can happen to a primary that Sentinels know. The first of these is the first that happens; the same holds
/// below.
pub(super) const TO_PRIMARIES: [Fault; 6] =
    [Fault::FailOver, Fault::LoseWrites, Fault::Kill, Fault::Pause, Fault::CutOff, Fault::HangUp];

/// What can happen to a primary of a cluster. The nodes elect each other, so that whom no other node reaches is one
/// that is stopped.
pub(super) const TO_NODES: [Fault; 6] =
    [Fault::FailOver, Fault::LoseWrites, Fault::Kill, Fault::Pause, Fault::MoveSlot, Fault::HangUp];

/// What can happen where the disk is small. A server that is killed while its disk is full loses what it has confirmed,
/// which no lock outlives; so it is not killed before it has written everything.
pub(super) const TO_DISKS: [Fault; 2] = [Fault::FillDisk, Fault::Kill];
