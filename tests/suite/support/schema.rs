//! The JSON schemas in `docs/`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Checks a list of documents on standard input against the schema in the file that is its argument. A property that
/// the schema does not describe is an error here; for users it is not, because a later version may add some.
const CHECK: &str = r"
import sys, json
from jsonschema import Draft202012Validator as Validator

def make_strict(node):
    if isinstance(node, dict):
        if node.get('type') == 'object':
            node['additionalProperties'] = False
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            make_strict(inner)

schema = json.load(open(sys.argv[1]))
Validator.check_schema(schema)
make_strict(schema)
errors = [(e.json_path, e.message) for d in json.load(sys.stdin) for e in Validator(schema).iter_errors(d)]
print(errors)
sys.exit(bool(errors))
";

/// Fails the test unless each of these documents is what the schema `docs/NAME.schema.json` describes.
#[track_caller]
pub(crate) fn must_fit(name: &str, documents: &[Value]) {
    assert!(!documents.is_empty(), "there is nothing to check");
    let schema = format!("{}/docs/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", CHECK, &schema]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().expect("python");
    let text = Value::from(documents.to_vec()).to_string();
    python.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = python.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{name}: {} in {text}", String::from_utf8_lossy(&output.stdout));
}
