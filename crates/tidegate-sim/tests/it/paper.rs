//! The paper's controller on the paper's tables.

use tidegate_sim::paper::{PUBLISHED, experiment, settled_rows};

#[test]
fn mez_pi_settles_on_the_rows_of_the_papers_table_3() {
    for published in PUBLISHED {
        for seed in [1, 2, 3, 4] {
            let rows = settled_rows(&experiment(published).with_seed(seed).site.run());
            assert_eq!(rows, [Some(published.row); 5], "{}, seed {seed}", published.scene);
        }
    }
}
