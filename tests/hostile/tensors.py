"""Mutated tensors: buffers, parameters, views; dtypes; varying sizes and numbers."""

import torch
from torch import nn

from tests.hostile.cases import case
from tests.programs import tensor


@case()
def slice_assignment():
    l = [1, 2, 3, 4]

    def f(x):
        l[1:3] = [7, 8]
        l[::2] = [0, 0]
        m = l[:]
        m[1:1] = [x]
        return x * l[1], m

    f.s = l
    return f


@case()
def tensor_as_dictionary_key():
    d = {}

    def f(x):
        d[x] = 1
        n = len(d)
        d.clear()
        return x * n

    f.s = d
    return f


@case()
def tensor_in_set():
    s = set()

    def f(x):
        y = x * 2
        s.add(y)
        r = y in s, x in s
        s.discard(y)
        return r, x

    f.s = s
    return f


@case()
def tensor_equality_in_list():
    a = torch.ones(3)

    def f(x):
        l = [a, x]
        return any(t is x for t in l), l.index(a), a in l

    return f


@case()
def hash_and_id_of_tensor():
    def f(x):
        return hash(x) == id(x), {id(x): 1}[id(x)]

    return f


@case()
def attributes_set_and_deleted_on_tensor():
    def f(x):
        x.foo = 3
        y = x * x.foo
        del x.foo
        return y, hasattr(x, "foo")

    return f


@case()
def view_of_buffer():
    m = nn.Module()
    m.register_buffer("b", torch.zeros(3))
    m.register_buffer("v", m.b[1:])

    def f(x):
        m.b.add_(x)
        m.v.mul_(2)
        return m.v + 1, m.b

    f.s = m
    return f


@case()
def swapped_buffers():
    m = nn.Module()
    m.register_buffer("a", torch.zeros(3))
    m.register_buffer("b", torch.ones(3))

    def f(x):
        m.a, m.b = m.b, m.a
        m.a += x
        return m.a * 2

    f.s = m
    return f


@case()
def buffer_converted_to_list():
    m = nn.Module()
    m.register_buffer("a", torch.zeros(3))
    hist = []

    def f(x):
        hist.append(m.a.clone())
        m.a = m.a + x
        if len(hist) > 2:
            del hist[0]
        return torch.stack(hist).sum()

    f.s = (m, hist)
    return f


@case()
def modules_registered_inside():
    m = nn.Module()

    def f(x):
        m.register_buffer("k", x * 2)
        m.lin = nn.Identity()
        m.sub = m.lin
        return m.k, [n for n, _ in m.named_buffers()], len(list(m.children()))

    f.s = m
    return f


@case()
def parameter_added_inside():
    m = nn.Module()

    def f(x):
        if not hasattr(m, "w"):
            m.w = nn.Parameter(torch.ones(3))
        return x * m.w

    f.s = m
    return f


@case()
def training_mode_changed_inside():
    m = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))

    def f(x):
        m.eval()
        y = m(x[None])
        m.train()
        z = m(torch.stack([x, x + 1]))
        return y, z, m.training

    f.s = m
    return f


@case(
    backward=True,
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0, grad=True),),
    ],
)
def retain_grad():
    def f(x):
        y = x * 2
        y.retain_grad()
        return (y * y).sum(), y

    return f


@case(
    backward=True,
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0, grad=True),),
    ],
)
def mixed_detached_tensors():
    def f(x):
        y = x.detach() * 2
        z = x * y
        w = z.detach_()
        return (x * w).sum(), y.requires_grad, w.is_leaf

    return f


@case(
    backward=True,
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0, grad=True),),
    ],
)
def gradient_computed_inside():
    def f(x):
        y = (x * x * x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g * 2

    return f


@case(
    backward=True,
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0, grad=True),),
    ],
)
def in_place_on_non_leaf():
    def f(x):
        y = x * 2
        y.mul_(3)
        y[0] = 0
        z = y.clone()
        z += y
        return z, y

    return f


@case(
    backward=True,
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0, grad=True),),
    ],
)
def in_place_on_leaf_error():
    def f(x):
        try:
            x.add_(1)
        except RuntimeError as e:
            return x * 2, "leaf" in str(e)

    return f


@case()
def complex_numbers():
    def f(x):
        c = torch.complex(x, x * 2)
        return c.real, c.conj(), c.abs(), torch.view_as_real(c), c.imag + 1

    return f


@case()
def boolean_and_integer_operators():
    def f(x):
        m = x > 0
        return (
            m & ~m,
            m.sum(),
            m.any(),
            x[m].sum() if False else x.masked_fill(m, 0),
            (x.int() // 2),
            x.int() % 2,
            x.long() << 1,
        )

    return f


@case()
def memory_format():
    def f(x):
        y = x.reshape(1, 1, 1, 3).expand(1, 2, 2, 3).contiguous(memory_format=torch.channels_last)
        return (
            y,
            y.is_contiguous(memory_format=torch.channels_last),
            y.stride(),
            y.permute(0, 2, 3, 1),
        )

    return f


@case()
def as_strided():
    def f(x):
        y = x.clone()
        v = y.as_strided((2, 2), (1, 1))
        v[0, 1] = 9
        return y, v

    return f


@case()
def split_views_mutated():
    def f(x):
        y = torch.cat([x, x])
        a, b = y.chunk(2)
        a.add_(b)
        b.zero_()
        u = y.unbind()[0]
        return y, a, b, u

    return f


@case()
def foreach_operators():
    l = [torch.ones(3), torch.ones(3)]

    def f(x):
        torch._foreach_add_(l, [x, x])
        r = torch._foreach_mul(l, 2.0)
        return r

    f.s = l
    return f


@case()
def einsum_and_meshgrid():
    def f(x):
        return (
            torch.einsum("i,j->ij", x, x),
            torch.meshgrid(x, x, indexing="ij"),
            torch.broadcast_tensors(x, x[:, None]),
            torch.topk(x, 2),
            x.max(0),
            x.sort(),
            torch.unique(x),
            x.nonzero(),
        )

    return f


@case()
def named_tuple_results():
    def f(x):
        v, i = x.max(0)
        r = x.sort(descending=True)
        return r.values, r.indices, v, i, r

    return f


@case()
def size_arithmetic():
    def f(x):
        (n,) = x.shape
        s = x.size()
        t = s + (2,)
        return (
            torch.zeros(t),
            s.numel(),
            t,
            type(t).__name__,
            x.new_zeros(n * 2),
            x.view(-1, n),
            s[0] * 2,
        )

    return f


@case(inputs=[lambda n=n: (torch.arange(float(n)),) for n in (3, 4, 5, 3, 7, 2, 1, 0, 6)])
def varying_sizes():
    def f(x):
        n = x.shape[0]
        if n % 2:
            x = x + n
        return (
            x[: n // 2],
            x.reshape(-1)[::2],
            torch.zeros(n),
            n,
            [i for i in range(min(n, 2))],
            list(x.shape),
            f"{n}",
            x.mean() if n else x,
        )

    return f


@case(
    inputs=[
        lambda n=n, k=k: (torch.arange(float(n)), k)
        for n, k in ((3, 1), (4, 2), (5, 3), (6, 3), (9, -1), (3, 0), (3, 2.5), (3, True))
    ]
)
def varying_numbers():
    def f(x, k):
        y = x * k + k**2
        d = {k: 1}
        l = [0] * abs(int(k))
        return (
            y,
            k + 1,
            -k,
            k > 2,
            str(k),
            d,
            len(l),
            max(k, 2),
            x.sum() * k,
            k // 2,
            divmod(k, 2),
            [k] * 2,
            (k,),
            {"k": k},
            hash(k),
            bool(k),
            k == 1,
            type(k).__name__,
            round(k),
            abs(k),
        )

    return f
