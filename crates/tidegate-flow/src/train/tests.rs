use super::*;
use crate::Model;

fn linear_of(csv: &str, features: &[&str], ridge: f64) -> Result<Fit, TrainError> {
    let features = features.iter().map(|name| (*name).to_owned()).collect();
    linear(csv, &LinearTraining { target: "y".to_owned(), features, ridge })
}

#[test]
fn an_exact_line_is_found() {
    let csv = "x,z,y\n1,10,13\n2,-4,0\n3,7,12\n5,0,7\n";
    let fit = linear_of(csv, &["x", "z"], 0.0).unwrap();
    let Model::Linear(model) = &fit.model else { panic!("a linear model") };
    for (found, expected) in
        [(model.intercept, 2.0), (model.coefficients[0].1, 1.0), (model.coefficients[1].1, 1.0)]
    {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
    assert!((fit.r_squared - 1.0).abs() < 1e-12 && fit.error < 1e-12 && fit.rows == 4);
    assert!((model.predict(&[1.0, 10.0]) - 13.0).abs() < 1e-12);
}

#[test]
fn examples_without_information_are_named() {
    let singular = |column: &str| TrainError::Singular { column: column.to_owned() };
    for (csv, features, expected) in [
        // The second is twice the first and 3.
        ("a,b,y\n1,5,1\n2,7,2\n3,9,4\n4,11,5\n", &["a", "b"][..], singular("b")),
        ("a,b,y\n1,5,1\n2,5,2\n3,5,4\n", &["a", "b"], singular("b")),
        ("a,b,y\n1,5,1\n2,6,2\n", &["a", "b"], TrainError::TooFew { rows: 2, coefficients: 3 }),
        ("", &["a"], TrainError::Empty),
        ("a,y\n", &["a"], TrainError::Empty),
        ("a,y\n1,2\n", &[], TrainError::NoFeatures),
        (
            "a,y\n1,2\n",
            &["b"],
            TrainError::Column { column: "b".to_owned(), known: "a, y".to_owned() },
        ),
        (
            "a,y\n1,2\nx,3\n",
            &["a"],
            TrainError::Value { row: 3, column: "a".to_owned(), found: "x".to_owned() },
        ),
        ("a,y\n1,2\n1\n", &["a"], TrainError::Columns { row: 3, found: 1, expected: 2 }),
        // Also where no column that is used is missing.
        ("a,y,z\n1,2,3\n1,2\n", &["a"], TrainError::Columns { row: 3, found: 2, expected: 3 }),
        ("a,y\n1,2\n\n3,4,\n", &["a"], TrainError::Columns { row: 3, found: 3, expected: 2 }),
        ("a,y\n1,2\n3,\"4\n5,6\n", &["a"], TrainError::Quotes { row: 3, value: 2 }),
        ("a,y\n\"1\"0,2\n", &["a"], TrainError::Quotes { row: 2, value: 1 }),
        ("\"a,y\n1,2\n", &["a"], TrainError::Quotes { row: 1, value: 1 }),
    ] {
        assert_eq!(linear_of(csv, features, 0.0).unwrap_err(), expected, "{csv:?}");
    }
}

#[test]
fn ridge_settles_what_examples_do_not() {
    let csv = "a,b,y\n1,1,2\n2,2,4\n3,3,6\n4,4,8\n";
    let fit = linear_of(csv, &["a", "b"], 1e-9).unwrap();
    let Model::Linear(model) = &fit.model else { panic!("a linear model") };
    // Shared between the two.
    for (_, coefficient) in &model.coefficients {
        assert!((coefficient - 1.0).abs() < 1e-6, "{coefficient}");
    }
    assert!(matches!(linear_of(csv, &["a"], -1.0), Err(TrainError::Setting { key: "ridge", .. })));
}

#[test]
fn a_tree_keeps_its_bounds() {
    let mut csv = "x,y\n".to_owned();
    for number in 0..100 {
        csv.push_str(&format!("{number},{}\n", if number % 10 < 5 { "low" } else { "high" }));
    }
    for (depth_max, leaf_rows_min, nodes) in [(1, 1, 3), (32, 1, 39), (32, 50, 3), (32, 51, 1)] {
        let training = TreeTraining {
            target: "y".to_owned(),
            features: vec!["x".to_owned()],
            depth_max,
            leaf_rows_min,
        };
        let fit = tree(&csv, &training).unwrap();
        let Model::Tree(model) = &fit.model else { panic!("a tree") };
        assert!(model.nodes.len() <= nodes, "{depth_max} {leaf_rows_min}: {}", model.nodes.len());
        if depth_max == 32 && leaf_rows_min == 1 {
            assert_eq!((fit.accuracy, model.nodes.len()), (1.0, nodes));
        }
        assert_eq!(tree(&csv, &training).unwrap(), fit);
        assert_eq!(Model::parse(fit.model.to_json().as_bytes()).unwrap(), fit.model);
    }
}
