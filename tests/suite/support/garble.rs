//! What a server says, made into what no server says.

use fastrand::Rng;

/// A reply that was tampered with.
pub(crate) enum Garbled {
    /// These bytes come instead.
    Once(Vec<u8>),
    /// These bytes come, again and again, without an end.
    Endless(Vec<u8>),
}

/// Beginnings of what never ends, or is too long for any memory, in the protocols of the stores.
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

/// Makes something else of a reply, as chance will have it. It never changes a single number or word, which could make a lock that
/// is held one that is granted.
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
