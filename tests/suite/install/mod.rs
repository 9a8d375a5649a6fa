//! What make, the packages and the archive install; and the units in `examples/`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Uid;
use tempfile::TempDir;

use crate::support::lockrun::PROGRAM;
use crate::support::processes::find_program;

/// Runs a program in the source's directory. Returns what it wrote to standard output, and fails the test if it fails.
#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(find_program(program))
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("DEB_ARCH", "all")
        // dpkg-deb's own level takes four times as long.
        .env("DPKG_DEB_COMPRESSOR_LEVEL", "1")
        .output()
        .expect("it starts");
    let both = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {both}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

// "`make uninstall` removes what `make install` installed."
#[test]
fn make_uninstall_removes_what_make_install_installed() {
    let root = TempDir::new().expect("a directory");
    let call = |what: &str| {
        // The binary exists, and must not be built.
        let (binary, root) = (format!("binary={PROGRAM}"), format!("DESTDIR={}", text(root.path())));
        run("make", &["-s", "-o", PROGRAM, what, &binary, &root, "PREFIX=/usr"]);
    };
    call("install");
    let installed = files(root.path());
    let pages = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("man")).expect("the manual").count();
    let is_page = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "1");
    assert_eq!(installed.iter().filter(is_page).count(), pages, "{installed:?}");
    assert_eq!(installed.len(), pages + 5, "{installed:?}");
    call("uninstall");
    assert_eq!(files(root.path()), [] as [PathBuf; 0]);
}

// "On systems whose `/run/lock` is not writable for users the package and `make install` bring a tmpfiles.d line": every
// user can then create a directory there, and remove only what is theirs.
#[test]
fn users_can_write_to_run_lock() {
    let root = TempDir::new().expect("a directory");
    let (run_lock, lines) = (root.path().join("run/lock"), root.path().join("usr/lib/tmpfiles.d"));
    for directory in [&run_lock, &lines] {
        fs::create_dir_all(directory).expect("a directory");
    }
    fs::set_permissions(&run_lock, fs::Permissions::from_mode(0o755)).expect("it is ours");
    // As Fedora and Arch have it, and as systemd's own file is named.
    fs::write(lines.join("legacy.conf"), "d /run/lock 0755\n").expect("a file");
    let line = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/tmpfiles.conf");
    let users = if Uid::effective().is_root() { "root root" } else { "- -" };
    let line = fs::read_to_string(line).expect("a file").replace("root root", users);
    fs::write(lines.join("lockrun.conf"), line).expect("a file");
    run("systemd-tmpfiles", &["--create", &format!("--root={}", text(root.path()))]);
    assert_eq!(run_lock.metadata().expect("it is there").permissions().mode() & 0o7777, 0o1777);
}

// "`make deb`: binary, manual pages, completions, example units, docs, copyright, changelog; installed, run and
// removed."
#[test]
fn the_debian_package_is_installed_run_and_removed() {
    let directory = TempDir::new().expect("a directory");
    run("sh", &["packaging/deb", PROGRAM, text(directory.path())]);
    let package = files(directory.path()).remove(0);
    let listed = run("dpkg-deb", &["--contents", text(&package)]);
    for wanted in [
        "./usr/bin/lockrun",
        "man1/lockrun-status.1.gz",
        "completions/lockrun",
        "vendor-completions/_lockrun",
        "fish/vendor_completions.d/lockrun.fish",
        "examples/systemd/leader.service",
        "docs/status.schema.json",
        "copyright",
        "changelog.gz",
    ] {
        assert!(listed.contains(wanted), "{wanted} is missing: {listed}");
    }
    if !Uid::effective().is_root() {
        return;
    }
    // Installs into a separate root directory.
    let root = TempDir::new().expect("a directory");
    for directory in ["updates", "info"] {
        fs::create_dir_all(root.path().join("var/lib/dpkg").join(directory)).expect("a directory");
    }
    fs::write(root.path().join("var/lib/dpkg/status"), "").expect("a file");
    let root_option = format!("--root={}", text(root.path()));
    run("dpkg", &[&root_option, "--log=/dev/null", "--install", text(&package)]);
    let binary = root.path().join("usr/bin/lockrun");
    let output = Command::new(&binary).arg("--version").output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), concat!("lockrun ", env!("CARGO_PKG_VERSION"), "\n"));
    // A unit among the examples runs one of them.
    for program in ["textfile-collector", "report.sh", "next-serial"] {
        let file = root.path().join("usr/share/doc/lockrun/examples").join(program);
        assert_eq!(file.metadata().expect("an example").permissions().mode() & 0o777, 0o755, "{program}");
    }
    run("dpkg", &[&root_option, "--log=/dev/null", "--remove", "lockrun"]);
    assert!(!binary.exists() && !root.path().join("usr").exists());
}

// "`make rpm`": what Cargo.toml lists for cargo-generate-rpm has all files of these directories, and the programs among
// them can be executed.
#[test]
fn the_rpm_package_has_all_files() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(source.join("Cargo.toml")).expect("a manifest");
    let quoted = |line: &str, name: &str| -> Option<String> {
        Some(line.split_once(&format!("{name} = \""))?.1.split('"').next()?.to_owned())
    };
    let assets: Vec<(String, String)> =
        manifest.lines().filter_map(|line| Some((quoted(line, "{ source")?, quoted(line, "mode")?))).collect();
    for directory in ["man", "completions", "docs", "examples"] {
        for path in files(&source.join(directory)) {
            let file = text(path.strip_prefix(source).expect("below it"));
            let covers = |pattern: &str| match pattern.split_once('*') {
                Some((before, after)) => {
                    let rest = file.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                    rest.is_some_and(|rest| !rest.contains('/'))
                }
                None => pattern == file,
            };
            let modes: Vec<_> = assets.iter().filter(|(pattern, _)| covers(pattern)).map(|(_, mode)| mode).collect();
            let is_program = path.metadata().expect("a file").permissions().mode() & 0o100 != 0;
            assert_eq!(modes, [if is_program { "755" } else { "644" }], "{file}");
        }
    }
}

// "`make dist` (tarball, SHA256SUMS)."
#[test]
fn the_archive_has_its_sums() {
    let directory = TempDir::new().expect("a directory");
    run("sh", &["packaging/tarball", PROGRAM, text(directory.path())]);
    let check = format!("cd '{}' && sha256sum --strict -c SHA256SUMS", text(directory.path()));
    assert!(run("sh", &["-c", &check]).contains(".tar.gz: OK"));
    let archive = files(directory.path()).into_iter().find(|path| text(path).ends_with(".tar.gz")).expect("an archive");
    let listed = run("tar", &["-tzf", text(&archive)]);
    assert!(listed.contains("/lockrun\n") && listed.contains("/man/lockrun.1\n"), "{listed}");
}

// "Units and recipes in examples/; each checked as far as can be here."
#[test]
fn the_units_are_sound() {
    let directory = TempDir::new().expect("a directory");
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/systemd");
    let mut args = vec!["verify".to_owned()];
    for unit in files(&units) {
        // Here lockrun is not installed where the units expect it.
        let content = fs::read_to_string(&unit).expect("a unit");
        let content = content.replace("/usr/bin/lockrun", PROGRAM);
        let content =
            content.replace("/usr/share/doc/lockrun/examples/", &format!("{}/examples/", env!("CARGO_MANIFEST_DIR")));
        let copy = directory.path().join(unit.file_name().expect("a name"));
        fs::write(&copy, content).expect("a copy");
        args.push(text(&copy).to_owned());
    }
    run("systemd-analyze", &args.iter().map(String::as_str).collect::<Vec<_>>());
}
