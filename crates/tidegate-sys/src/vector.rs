//! Loops for wider vectors than every processor has.

/// Work that [`wide`] does.
///
/// `run` is to be `#[inline(always)]`, and so are the functions that it calls: any that is not inlined is compiled
/// for the base target.
pub trait Work {
    /// The result.
    type Output;

    /// Does it.
    fn run(self) -> Self::Output;
}

/// Does `work`, compiled for vectors of 32 bytes (AVX2, BMI) where the processor has them, and as everything else where it has not.
/// The result is the same: no two operations are fused.
///
/// For loops of some dozens of rounds: to ask the processor costs a few loads and branches.
#[inline]
pub fn wide<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
    {
        // SAFETY: the processor has what the function is compiled for.
        return unsafe { wide_x86(work) };
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn wide_x86<W: Work>(work: W) -> W::Output {
    work.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum<'a>(&'a [f64]);

    impl Work for Sum<'_> {
        type Output = (f64, u64);

        #[inline(always)]
        fn run(self) -> (f64, u64) {
            let each = self.0.iter().map(|float| float * 3.0 + 0.1);
            (each.clone().sum(), each.fold(0, |all, float| all ^ float.to_bits()))
        }
    }

    #[test]
    fn wide_work_comes_to_the_same() {
        let floats: Vec<f64> = (0..1000).map(|number| f64::from(number) / 7.0).collect();
        assert_eq!(wide(Sum(&floats)), Sum(&floats).run());
    }
}
