//! What lockrun prints for programs has the fields that the pages name.

use std::collections::BTreeSet;

use serde_json::Value;

use super::pages::Page;
use crate::support::{Lockrun, Store};

// "Every field": of the answer of `acquire`.
#[test]
fn every_field_of_the_answer_is_documented() {
    let store = Store::file();
    let output = Lockrun::other("acquire", &store).key("answer").arg("--json").run().exited(0).silent();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let printed: BTreeSet<&str> = answer.as_object().expect("an object").keys().map(String::as_str).collect();
    let page = Page::read("docs/json.md".into());
    let rows = page.text.lines().skip_while(|line| !line.starts_with("| field of the answer |")).skip(2);
    let documented: BTreeSet<&str> = rows.map_while(|row| row.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(documented, printed);
}
