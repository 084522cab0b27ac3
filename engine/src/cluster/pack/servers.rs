//! Sets of servers.

/// Most servers of a cluster.
pub const SERVERS_MAX: usize = 256;

/// A set of servers, by their positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Servers([u64; SERVERS_MAX / 64]);

impl Servers {
    /// The first `count` servers.
    pub fn first(count: usize) -> Servers {
        (0..count).collect()
    }

    /// Adds one. Panics above [`SERVERS_MAX`].
    pub fn insert(&mut self, server: usize) {
        self.0[server / 64] |= 1 << (server % 64);
    }

    /// Whether a server is in it.
    pub fn contains(&self, server: usize) -> bool {
        server < SERVERS_MAX && self.0[server / 64] >> (server % 64) & 1 == 1
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a server is in both.
    pub fn overlaps(&self, other: &Servers) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// Those in either.
    pub fn or(self, other: &Servers) -> Servers {
        Servers(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    /// Those not in `other`.
    pub fn without(self, other: &Servers) -> Servers {
        Servers(std::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            let mut bits = bits;
            std::iter::from_fn(move || {
                (bits != 0).then(|| {
                    let at = bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    word * 64 + at
                })
            })
        })
    }
}

impl FromIterator<usize> for Servers {
    fn from_iter<I: IntoIterator<Item = usize>>(servers: I) -> Servers {
        let mut all = Servers::default();
        for server in servers {
            all.insert(server);
        }
        all
    }
}
