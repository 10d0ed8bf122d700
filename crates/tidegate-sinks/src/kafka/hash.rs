//! Which partition a key belongs to, as Kafka's own clients have it: MurmurHash2, 32 bits, of the seed that they use.

/// The partition of `count`, at least 1, for records with this key.
pub(super) fn partition_of(key: &[u8], count: i32) -> i32 {
    (murmur2(key) & 0x7fff_ffff) as i32 % count.max(1)
}

fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes(word.try_into().expect("four bytes"));
        k = k.wrapping_mul(M);
        k ^= k >> 24;
        k = k.wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (place, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_where_kafkas_own_clients_put_them() {
        // org.apache.kafka.common.utils.Utils.murmur2 of Kafka 4.1.0
        for (key, expected) in MURMUR2 {
            assert_eq!(murmur2(key.as_bytes()) as i32, expected, "{key}");
        }
        for count in [1, 3, 12] {
            assert!((0..count).contains(&partition_of(b"sensor/7", count)));
        }
    }

    const MURMUR2: [(&str, i32); 8] = [
        ("", 275_646_681),
        ("a", -1_563_381_124),
        ("ab", 316_155_434),
        ("abc", 479_470_107),
        ("abcd", -1_323_649_548),
        ("sensor/7", 907_558_923),
        ("site/ä", 1_607_496_617),
        ("a longer key than one word", -1_568_000_602),
    ];
}
