//! Sequences of integers.

use crate::support::Lockrun;
use crate::support::sequence::{Reserver, at, fail, next, peek, reserve, reserved, status};
use crate::support::store::{on_every_lease_store, on_every_store};

// "The first value is VALUE; then last + step", which is 1 if it is not given.
on_every_store!(the_first_value_then_the_next, |store| {
    let call = reserve(store, "7");
    for value in ["7", "8", "9"] {
        assert_eq!(next(&call), value);
    }
    // The first value no longer matters.
    assert_eq!(next(&reserve(store, "100").args(["--step", "5"])), "14");
});

// "Step may be negative."
on_every_store!(steps_may_be_negative, |store| {
    let call = reserve(store, "1").args(["--step", "-2"]);
    for value in ["1", "-1", "-3"] {
        assert_eq!(next(&call), value);
    }
});

// Two keys are two sequences.
on_every_store!(another_key_is_another_sequence, |store| {
    assert_eq!(next(&reserve(store, "1")), "1");
    let other = Lockrun::bare().args(["reserve", "--store", &store.url(), "--key", "other", "--from", "5"]);
    assert_eq!(next(&other), "5");
    assert_eq!(next(&reserve(store, "1")), "2");
});

// "Integers": of 64 bits, and exact where a floating-point number is not.
on_every_store!(large_values_are_exact, |store| {
    let call = reserve(store, "9007199254740993");
    let held = Reserver::begin(&call);
    assert_eq!(held.value, "9007199254740993");
    assert_eq!(next(&call), "9007199254740994");
    assert_eq!(status(store)["last_value"], "9007199254740994");
    assert_eq!(next(&call), "9007199254740995");
});

// "Overflow is an error": 125, and nothing is reserved. The last value that fits is a value.
on_every_store!(an_overflow_is_an_error, |store| {
    for (from, step, last) in
        [("9223372036854775806", "1", "9223372036854775807"), ("-9223372036854775807", "-1", "-9223372036854775808")]
    {
        let key = format!("--key=to {step}");
        let call = Lockrun::bare().args(["reserve", "--store", &store.url(), &key, &format!("--from={from}")]);
        let call = call.args(["--step", step]);
        assert_eq!(next(&call), from);
        // The last value is passed over, and then there is none.
        let held = Reserver::begin(&call);
        assert_eq!(held.value, last);
        let none = || call.clone().command(["echo", "ran"]).run().exited(125).printed("").said(last);
        none().said("64 bits");
        held.end(0);
        none().said("64 bits");
    }
    assert_eq!(next(&reserve(store, "9223372036854775807").arg("--step=-9223372036854775808")), "9223372036854775807");
    assert_eq!(next(&reserve(store, "1").arg("--step=-9223372036854775808")), "-1");
    let call = reserve(store, "1").arg("--step=-9223372036854775808");
    call.command(["echo", "ran"]).run().exited(125).printed("").said("64 bits");
    assert_eq!(reserved(store), Vec::<String>::new());
});

// "A value that another run has reserved is passed over": that of a run that goes on, and that of one that has failed.
on_every_store!(a_reserved_value_is_passed_over, |store| {
    let call = reserve(store, "1");
    let one = Reserver::begin(&call);
    assert_eq!(one.value, "1");
    assert_eq!(fail(&call), "2");
    let three = Reserver::begin(&call);
    assert_eq!(three.value, "3");
    assert_eq!(peek(&call), "4");
    let mut taken = reserved(store);
    taken.sort();
    assert_eq!(taken, ["1", "2", "3"]);
});

// "Overflow is an error": so is a last value that is not an integer, for which only a program can compute the next one.
// On every store, an integer that is not written as lockrun writes it does not count as one.
on_every_store!(only_a_program_follows_what_is_no_integer, |store| {
    for (number, from) in ["A", "007", "+7", "-0", "1.0", "92233720368547758070"].into_iter().enumerate() {
        let call = || {
            let key = format!("--key=mixed {number}");
            Lockrun::bare().args(["reserve", "--store", &store.url(), &key])
        };
        assert_eq!(next(&call().arg(format!("--from={from}")).args(["--next", "echo"])), from);
        let counted = call().args(["--from", "1"]).command(["echo", "ran"]).run();
        counted.exited(125).printed("").said(&format!("\"{from}\", is not an integer")).said("--next");
    }
});

// "With `--step`, one round trip": before the command starts, and one when it has ended.
on_every_lease_store!(one_round_trip, |store| {
    let server = store.server();
    let proxy = store.proxy();
    let call = at(&proxy.url(), "1");
    // From now on a Redis server has the scripts.
    assert_eq!(next(&call), "1");
    let _passed_over = [Reserver::begin(&call), Reserver::begin(&call)];
    let (connections, flights, scripts) = (proxy.connections(), proxy.flights(), server.requests());
    let run = Reserver::begin(&call);
    assert_eq!(run.value, "4");
    let ours = server.connections_of_a_client();
    assert_eq!((proxy.connections() - connections, proxy.flights() - flights), (ours, server.round_trips(1)));
    assert_eq!(server.requests() - scripts, server.requests_of(0, 1));
    run.end(0);
    let flights = proxy.flights() - flights;
    assert_eq!((proxy.connections() - connections, flights), (ours, server.round_trips(2) + server.farewells()));
    assert_eq!(server.requests() - scripts, server.requests_of(0, 2));
});
