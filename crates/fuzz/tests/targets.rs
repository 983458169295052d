//! Every target runs its corpus, inputs close to it, and a fixed number of mutated inputs.

#![forbid(unsafe_code)]

use fuzz::{Plan, TARGETS, corpus, find, inputs, run};

/// Runs a target for as long as every test run has time for. `mutations` is chosen so that all
/// targets together take some seconds in a test build. `docs/fuzzing.md` describes longer runs.
fn keeps_its_promises(name: &str, neighbours_max: usize, mutations: usize) {
    let target = find(name).expect("a target of this name");
    let corpus = corpus::load(target).expect("the corpus is readable");
    assert!(!corpus.is_empty(), "a target without a corpus starts from nothing");
    let crashes = run(target, inputs(target, corpus, Plan { neighbours_max, mutations, seed: 1 }));
    let crashes: Vec<String> = crashes
        .iter()
        .map(|crash| {
            let kept = corpus::keep_crash(target, &crash.input).map_or_else(
                |error| format!("not kept ({error}): {}", crash.input.escape_ascii()),
                |path| format!("kept as {}", path.display()),
            );
            format!("{}\n  input {kept}", crash.finding)
        })
        .collect();
    assert!(crashes.is_empty(), "{name}: {}", crashes.join("\n"));
}

macro_rules! targets {
    ($($test:ident: $name:literal, $neighbours:literal, $mutations:literal;)*) => {
        $(
            #[test]
            fn $test() {
                keeps_its_promises($name, $neighbours, $mutations);
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$($name),*];
            for target in &TARGETS {
                assert!(tested.contains(&target.name), "{}", target.name);
            }
            assert_eq!(tested.len(), TARGETS.len());
        }
    };
}

targets! {
    what_people_write_reads_back_and_every_layer_takes_it: "address", 2_000, 100_000;
    any_command_line_is_understood_or_refused: "arguments", 50, 1_500;
    any_catalogue_is_valid_or_refused: "catalogue", 1_000, 20_000;
    any_pair_of_superblocks_is_decided: "copies", 2_000, 20_000;
    any_duration_is_exact_or_refused: "duration", 2_000, 100_000;
    what_else_a_drive_holds_is_found_or_not_but_never_a_crash: "foreign", 100, 4_000;
    any_client_of_the_api_is_answered_or_cut_off_and_changes_nothing_without_a_token: "http-router", 25, 500;
    any_token_file_says_who_comes_in_or_is_refused: "http-tokens", 500, 20_000;
    drives_with_any_contents_are_served_and_rescued_or_refused: "image", 0, 150;
    any_frame_of_the_intent_log_is_valid_or_refused: "intent-frame", 3_000, 20_000;
    any_shape_has_a_layout_or_a_reason: "layout", 10_000, 100_000;
    any_log_frame_is_valid_or_refused: "log-frame", 3_000, 20_000;
    any_list_of_lost_blocks_is_valid_or_refused: "log-lost", 3_000, 20_000;
    any_map_block_is_valid_or_refused: "map", 3_000, 20_000;
    any_md_superblock_is_decided_and_its_array_lies_inside_its_members: "md", 1_000, 20_000;
    any_reply_is_whole_or_none: "nbd-replies", 10_000, 100_000;
    any_script_of_messages_is_served_however_it_is_cut: "nbd-script", 500, 1_500;
    any_stream_is_served_however_it_is_cut: "nbd-stream", 500, 5_000;
    any_answers_of_a_controller_are_understood_or_refused: "nvme-answers", 2_000, 10_000;
    nobody_is_let_in_without_the_secret_whatever_is_said: "nvme-auth", 500, 5_000;
    any_controllers_bytes_are_read_however_they_are_cut: "nvme-replies", 500, 10_000;
    any_script_of_pdus_is_served_however_it_is_cut: "nvme-script", 500, 10_000;
    any_hosts_bytes_are_served_however_they_are_cut: "nvme-stream", 1_000, 10_000;
    nobody_gets_into_tls_without_the_key_whatever_is_said: "nvme-tls", 200, 2_000;
    any_request_is_taken_whole_or_refused: "request", 3_000, 50_000;
    any_size_is_exact_or_refused: "size", 2_000, 100_000;
    any_superblock_is_valid_or_refused: "superblock", 3_000, 20_000;
    any_anchor_of_a_thin_store_is_valid_or_refused: "thin-anchor", 3_000, 20_000;
    any_batch_of_a_thin_store_is_valid_or_refused: "thin-batch", 3_000, 20_000;
    any_node_of_a_thin_store_is_valid_or_refused: "thin-node", 3_000, 20_000;
    any_compressed_content_is_decoded_to_the_same_bytes_or_refused: "thin-packed", 2_000, 5_000;
}
