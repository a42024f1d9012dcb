//! The command line.

use crate::launch;

#[test]
fn the_command_makes_images_and_explains_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.image");
    let run = |args: &[&str]| {
        let output = launch::program(env!("CARGO_BIN_EXE_layout-tool"))
            .args(args)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let target = path.to_str().unwrap();
    let args = [
        "synth", "tiny", "-o", target, "--seed", "7", "--layers", "1",
    ];
    let (code, out, _) = run(&[&args[..], &["--activation-share", "0.2"]].concat());
    assert_eq!(code, Some(0));
    assert!(out.contains("20.0 % of the neurons active"), "{out}");
    let (code, _, error) = run(&args);
    assert_eq!(code, Some(1));
    assert!(error.contains("exists"), "{error}");
    let (code, _, error) = run(&["synth", "large", "-o", target, "--force"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("no shape is called large, choose one of"));
    let (code, help, _) = run(&["synth", "--help"]);
    assert_eq!(code, Some(0));
    for name in layout_tool::synth::shape_names().split(", ") {
        assert!(help.contains(name), "{name} in {help}");
    }
}
