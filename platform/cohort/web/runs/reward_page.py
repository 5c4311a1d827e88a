"""The page that makes a reward of a trained reward model. Fetch, authorise, call one service, render."""

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from cohort.accounts.models import Role
from cohort.catalog.models import BaseModel
from cohort.runs.models import Checkpoint
from cohort.runs.services import NotPossible
from cohort.runs.trained_rewards import preference_figures, replaceable, trained_reward_create
from cohort.web.access import form_page, run_for
from cohort.web.accounts.views import person
from cohort.web.fields import ServiceForm
from cohort.web.runs.header import Header
from grpo_core.config.reward_model import RewardModelConfig, scoring_texts


class TrainedRewardForm(ServiceForm):
    name = forms.CharField(
        max_length=120,
        label="Reward",
        help_text="A new name makes a reward. The name of one that has a reward model makes its next version, with "
        "this model in place of that one and all else as it is.",
        widget=forms.TextInput(attrs={"list": "rewards", "autocomplete": "off"}),
    )
    pass_at = forms.FloatField(
        required=False,
        label="Right from",
        help_text="Number from which on an answer counts as right: the probe needs it. Empty: the reward says nothing "
        "of right and wrong, or what its last version says.",
    )


@form_page
def trained_reward_new(request: HttpRequest, slug: str, run_id: int, checkpoint_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    rows = Checkpoint.objects.select_related("run__project", "run__base_model", "attempt__node")
    checkpoint = get_object_or_404(rows, run=run, pk=checkpoint_id, final=True)
    config = run.parsed_config
    if not isinstance(config, RewardModelConfig):
        raise Http404
    figures = preference_figures([run.pk]).get(run.pk)
    form = TrainedRewardForm(request.POST or None, initial={"name": run.name})
    if request.method == "POST" and form.is_valid():
        try:
            version = form.call(
                trained_reward_create, checkpoint=checkpoint, actor=person(request), **form.cleaned_data
            )
        except NotPossible as error:
            messages.error(request, f"Nothing was done: {error}.")
            return redirect("checkpoint_detail", slug, run_id, checkpoint_id)
        if version is not None:
            messages.success(request, f"{version} is made of {run.name}. Probe it before a run learns from it.")
            page = reverse("verifier_detail", args=[slug, version.verifier_id])
            return redirect(f"{page}?version={version.number}")
    context = Header(run).context(
        "attempts",
        form=form,
        checkpoint=checkpoint,
        model=BaseModel.objects.filter(checkpoint=checkpoint).first(),
        texts=scoring_texts(config.data.template, chat=config.data.chat),
        facts=figures,
        names=replaceable(run.project),
    )
    return render(request, "runs/reward_new.html", context, status=form.status)
