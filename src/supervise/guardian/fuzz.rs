//! Fuzzing of the messages between lockrun and its guardian.

use super::backchannel::{Frame, GuardianMessage, RenewerMessage};

/// Checks that every message that can be decoded survives being encoded and decoded again.
pub fn messages(data: &[u8]) {
    for bytes in data.chunks(size_of::<Frame>()) {
        let mut frame = Frame::default();
        for (word, bytes) in frame.iter_mut().zip(bytes.chunks(size_of::<u64>())) {
            let mut whole = [0; size_of::<u64>()];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        if let Some(message) = GuardianMessage::decode(frame) {
            assert_eq!(GuardianMessage::decode(message.encode()), Some(message));
        }
        if let Some(message) = RenewerMessage::decode(frame) {
            assert_eq!(RenewerMessage::decode(message.encode()), Some(message));
        }
    }
}
