//! What takes too long to be a part of every run of the tests: it runs where a variable asks for it.

/// The number in this variable.
pub(super) fn asked(variable: &str) -> Option<u64> {
    let number = |asked: String| asked.parse().unwrap_or_else(|_| panic!("{variable} is no number: {asked}"));
    std::env::var(variable).ok().filter(|asked| !asked.is_empty()).map(number)
}

/// Makes a test of a contract for every store, which is run if this variable has a number.
macro_rules! on_every_store_if_asked {
    ($variable:literal, $contract:ident) => {
        $crate::chaos::on_demand::on_every_store_if_asked!($variable, $contract, file, redis, sentinel, cluster, postgres, pooled, etcd);
    };
    ($variable:literal, $contract:ident, $($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                if let Some(number) = $crate::chaos::on_demand::asked($variable) {
                    $crate::support::calm::judge(|| $contract(&$crate::support::Store::$name(), number));
                }
            }
        )*
    };
}
pub(super) use on_every_store_if_asked;
