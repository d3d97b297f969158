"""What other libraries call the settings of credo, so that a wrong name is answered with the right
one.
"""

from __future__ import annotations

from collections.abc import Iterable

from credo.core.errors import nearest

#: Names of one thing in each line. Of those that are known the first is suggested; underscores and
#: capitals do not matter.
SYNONYMS = """
epochs n_epochs num_epochs max_epochs nb_epochs n_iter num_iterations max_iter iterations
batch_size bs mini_batch_size subsample_size
lr learning_rate learning_rate_init step_size eta
num_data n_data num_train n_train dataset_size train_size num_datapoints
validation val valid validation_data val_data eval_set
seed random_state random_seed rng rng_key generator
run out log_dir output_dir save_dir checkpoint_dir
progress verbose progress_bar show_progress
callbacks callback
optimizer optim
lr_schedule lr_scheduler scheduler
num_samples samples num_draws draws train_samples mc_samples n_samples n_draws num_mc_samples n_mc
num_members members n_members num_models n_models ensemble_size n_estimators num_estimators
num_particles particles n_particles
num_chains chains n_chains
num_warmup warmup burn_in num_burn_in n_burn_in tune n_tune num_tune n_warmup warmup_steps
thin thinning thin_by
num_steps num_leapfrog n_leapfrog num_leapfrog_steps leapfrog_steps
num_cycles cycles n_cycles
num_inducing inducing n_inducing inducing_points num_inducing_points
p dropout dropout_rate dropout_prob dropout_p drop_rate drop_prob
posterior guide family variational_family
init initial_values init_values
init_std initial_std init_sigma sigma_init init_scale posterior_std
beta kl_weight kl_beta kl_factor kl_coeff
kl_warmup kl_annealing annealing_epochs warmup_epochs
target_rate target_accept target_accept_prob target_acceptance_rate
max_depth max_tree_depth
mass mass_matrix
structure hessian_structure
subset subset_of_weights
in_features input_dim in_dim input_size num_features n_features
out_features outputs num_classes n_classes classes num_outputs n_outputs output_dim out_dim
hidden hidden_sizes hidden_dims hidden_dim hidden_size hidden_layer_sizes hidden_layers
channels in_channels in_chans input_channels
activation nonlinearity act activation_fn
weight_decay wd l2 l2_reg l2_regularization
likelihood loss loss_fn criterion
"""

_DECAY = (
    "Weight decay is the prior: credo.BNN(net, prior=Normal(0, std)) is a weight decay of "
    "1 / (N std^2) on the mean loss of N examples."
)
_LOSS = "What is learned follows from the likelihood: credo.BNN(net, likelihood=...)."
_FIT = "It is an argument of fit, beside the method: bnn.fit(data, method, {}=...)."
_DRAWS = "How many draws a prediction takes is said later: bnn.predict(x, num_samples=...)."

#: Names of things that are said elsewhere, and where.
ELSEWHERE: dict[str, str] = {
    "weight_decay": _DECAY,
    "likelihood": _LOSS,
    "prior": "The prior belongs to the model: credo.BNN(net, prior=...).",
    "random": "Which parameters are random belongs to the model: credo.BNN(net, random=...).",
    "num_samples": _DRAWS,
    **{
        name: _FIT.format(name)
        for name in ("epochs", "batch_size", "lr", "num_data", "validation", "seed", "device")
    },
}


def synonym(given: str, known: Iterable[str]) -> str | None:
    """The known name for the same thing, if there is one."""
    known = set(known)
    for row in (line.split() for line in SYNONYMS.splitlines()):
        if _plain(given) in map(_plain, row):
            same = [name for name in row if name in known]
            if same:
                return same[0]
    return None


def suggest(given: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the known one for the same thing, else where it is said, else the
    one that is spelled most alike; and all known names.
    """
    known = sorted(known)
    listed = f"Known: {', '.join(known) or 'none'}."
    same = synonym(given, known)
    if same is not None:
        return f" Did you mean {same!r}? {listed}"
    elsewhere = synonym(given, ELSEWHERE) or _plain(given)
    if elsewhere in ELSEWHERE:
        return f" {ELSEWHERE[elsewhere]} {listed}"
    return nearest(given, known)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
