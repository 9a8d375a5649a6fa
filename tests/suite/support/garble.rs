//! Replies of a server, garbled into what no server sends.

use fastrand::Rng;

/// A garbled reply.
pub(crate) enum Garbled {
    /// These bytes replace the reply.
    Once(Vec<u8>),
    /// These bytes are repeated without end.
    Endless(Vec<u8>),
}

/// Beginnings of messages that never end, or are too long for any memory, in the protocols of the stores.
const GIANT: [&[u8]; 8] = [
    b"$4000000000\r\n",
    b"*2147483647\r\n",
    b"%9223372036854775807\r\n",
    b"D\x7f\xff\xff\xff\xff\xff",
    b"R\0\0\0\0",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{",
    b"HTTP/1.1 200 OK\r\nX: ",
];

/// One level of a value within a value.
const NESTED: [&[u8]; 3] = [b"*1\r\n", b"[", b"{\"kvs\":"];

/// Garbles a reply at random. It never changes a single number or word, which could turn a refusal into a grant.
pub(crate) fn garbled(reply: &[u8], chance: &mut Rng) -> Garbled {
    let at = chance.usize(..=reply.len());
    let (before, after) = reply.split_at(at);
    Garbled::Once(match chance.u8(..8) {
        0 => before.to_vec(),
        1 => Vec::new(),
        2 => reply.repeat(2),
        3 => {
            let noise: Vec<u8> = (0..chance.usize(16..200)).map(|_| chance.u8(..)).collect();
            [before, &noise, after].concat()
        }
        4 => [before, &NESTED[chance.usize(..NESTED.len())].repeat(100_000)].concat(),
        5 => GIANT[chance.usize(..GIANT.len())].to_vec(),
        6 => vec![chance.u8(..); reply.len().max(1)],
        _ => return Garbled::Endless(if at == 0 { reply.to_vec() } else { before.to_vec() }),
    })
}
