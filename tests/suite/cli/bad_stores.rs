//! Stores that are named wrongly.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;

use tempfile::TempDir;

use crate::support::Lockrun;
use crate::support::refusal::{is_refused, marked, touches_nothing};

/// URLs that name no store.
const BAD_URLS: &[(&[&str], &str)] = &[
    (&[""], "store"),
    (&["locks"], "not a store's URL"),
    (&["/var/lock"], "a directory is written file:/DIR"),
    (&["ftp://127.0.0.1/"], "stores are file:, redis://"),
    (&["http://127.0.0.1/"], "http"),
    (&["memcached://127.0.0.1"], "stores are file:, redis://"),
    (&["redis:"], "lacks the // after redis:"),
    (&["redis://"], "host"),
    (&["redis:///0"], "host"),
    (&["redis://:6379"], "the redis URL names no host"),
    (&["redis://127.0.0.1:0"], "port"),
    (&["redis://127.0.0.1:65536"], "port"),
    (&["redis://127.0.0.1:port"], "port"),
    (&["redis://127.0.0.1/x"], "a database that is not a number"),
    (&["redis://127.0.0.1/-1"], "a database that is not a number"),
    (&["redis://127.0.0.1/0/1"], "a database that is not a number"),
    (&["redis://127.0.0.1/99999999999999999999"], "a database that is not a number"),
    (
        &["redis://127.0.0.1/?frobnicate=1"],
        "a parameter that is not known, number 1 after the ?; there are prefix, grace\n",
    ),
    (&["redis://127.0.0.1/?prefix="], "prefix"),
    (&["redis+unix://"], "redis+unix"),
    (&["redis+unix:relative.sock"], "redis+unix"),
    (&["rediss://127.0.0.1/?ca=/no/such/ca.pem"], "/no/such/ca.pem"),
    (&["rediss://127.0.0.1/?ca="], "empty ca"),
    (&["etcds://127.0.0.1/?ca=/etc/hostname&cert=&key="], "empty cert"),
    (&["rediss://127.0.0.1/?cert=/no/such/cert.pem&key=/no/such/key.pem"], "/no/such/"),
    (&["rediss://127.0.0.1/?cert=/etc/hostname"], "key"),
    (&["file:relative/path"], "the file URL is not an absolute path; write file:/DIR"),
    (&["file://host/path"], "is not an absolute path"),
    (&["file:/tmp/?frobnicate=1"], "a parameter that is not known"),
    (&["file:/tmp/?group=daemon&frobnicate=1"], "a parameter that is not known, number 2 after the ?; there is group"),
    (&["file:/tmp/?group="], "group="),
    (&["file:/tmp/?group"], "group="),
    (&["file:/tmp/?group=daemon&group=daemon"], "twice"),
    (&["file:/tmp/?group=no-such-group"], "\"no-such-group\" is not in /etc/group"),
    (&["file:/tmp/?group=4294967295"], "4294967295"),
    (&["file:/tmp/?group=-1"], "\"-1\""),
    (&["file:?group=daemon"], "file:/DIR?group=NAME"),
];

// "`--store URL`": one of the forms of the table, or refused.
#[test]
fn store_urls() {
    let directory = TempDir::new().expect("a temporary directory");
    for (words, wanted) in BAD_URLS {
        let url = words[0];
        let call = Lockrun::bare().directory(directory.path()).key("k");
        is_refused(marked(call.clone().args(["--store", url])), wanted);
        if !url.is_empty() {
            is_refused(marked(call.env("LOCKRUN_STORE", url)), wanted);
        }
    }
    let left = fs::read_dir(directory.path()).expect("our own directory").count();
    assert_eq!(left, 0, "something was created");
    let not_text = OsStr::from_bytes(b"file:/tmp/\xff");
    let output = marked(Lockrun::bare().key("k").arg("--store").arg(not_text));
    // A directory's name need not be text: it is either accepted, or refused with a reason.
    assert!(matches!(output.status, Some(0 | 64 | 69)), "{output}");
}

// "`--store-file PATH`: read the store's URL from a file": one that is there and holds one URL.
#[test]
fn store_files() {
    let directory = TempDir::new().expect("a temporary directory");
    let file = |name: &str, text: &[u8]| -> OsString {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("a file");
        path.into_os_string()
    };
    let call = |path: &OsStr| marked(Lockrun::bare().key("k").arg("--store-file").arg(path));
    is_refused(call(OsStr::new("/no/such/file")), "/no/such/file");
    is_refused(call(directory.path().as_os_str()), "store-file");
    is_refused(call(&file("empty", b"")), "store-file");
    is_refused(call(&file("blank", b"\n \n")), "store-file");
    is_refused(call(&file("not-text", b"\xff\xfe\n")), "store-file");
    is_refused(call(&file("scheme", b"ftp://127.0.0.1\n")), "--store-file: the value is not a store's URL");
    let good = file("good", b"file:\n");
    touches_nothing(|call| marked(call.key("k").arg("--store-file").arg(&good)), "--store");
    let bad = file("secret", b"redis://:hushhush@127.0.0.1:port\n");
    let output = call(&bad).exited(64).said("port");
    assert!(!output.stderr().contains("hushhush"), "{output}");
}
