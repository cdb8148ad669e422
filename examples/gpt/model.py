"""A small GPT: characters in, a guess at the next one out."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention to what came before, then a layer for each place by itself."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):  # (batch, length, width)
        batch, length, width = x.shape
        parts = self.asked(self.before(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.answer(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.think(self.between(x))


class GPT(nn.Module):
    """Returns the mean loss of guessing `y`, the characters that follow those of `x`."""

    def __init__(self, characters, length=64, width=128, heads=4, depth=4):
        super().__init__()
        self.character, self.place = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.after, self.guess = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, x, y):
        h = self.character(x) + self.place.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.guess(self.after(h)).flatten(0, 1), y.flatten())


class Text:
    """Batches of a text, the same whatever the number of ranks that share them."""

    def __init__(self, text, length=64):
        self.characters = sorted(set(text))
        self.codes = torch.tensor([self.characters.index(c) for c in text])
        self.length = length

    def batch(self, step, size, rank, ranks):
        """Return this rank's part of a batch of `size` pieces: its characters, the next ones."""
        random = torch.Generator().manual_seed(step)
        starts = torch.randint(len(self.codes) - self.length, (size,), generator=random)
        pieces = torch.stack([self.codes[s : s + self.length + 1] for s in starts[rank::ranks]])
        return pieces[:, :-1], pieces[:, 1:]
