
document.querySelectorAll('.timeline').forEach(box=>{
const svg=box.querySelector('svg'),ticks=box.querySelector('.ticks'),about=box.querySelector('.about');
const from=+box.dataset.from,to=+box.dataset.to,[,,full,high]=svg.getAttribute('viewBox').split(' ').map(Number);
let x=0,w=full,held=null;
const draw=()=>{w=Math.min(full,Math.max(full/1000,w));x=Math.min(full-w,Math.max(0,x));
svg.setAttribute('viewBox',`${x} 0 ${w} ${high}`);ticks.style.marginLeft=svg.getBoundingClientRect().left-
box.getBoundingClientRect().left+'px';
const a=from+(to-from)*x/full,b=from+(to-from)*(x+w)/full,raw=(b-a)/Math.max(2,svg.clientWidth/90);
const p=10**Math.floor(Math.log10(raw)),step=[1,2,5,10].map(m=>m*p).find(s=>s>=raw*.999);
const digits=Math.max(0,-Math.floor(Math.log10(step)+1e-9));ticks.replaceChildren();
for(let t=Math.ceil(a/step);t*step<=b;t++){const s=document.createElement('span');
s.textContent=(t*step).toFixed(digits)+' s';const at=100*(t*step-a)/(b-a);
s.style.left=at+'%';if(at<2)s.style.transform='none';ticks.append(s)}};
const zoom=(by,at)=>{const c=x+w*at;w=by?Math.min(full,Math.max(full/1000,w*by)):full;x=c-w*at;draw()};
box.querySelectorAll('button').forEach(b=>b.onclick=()=>zoom(+b.dataset.zoom,.5));
svg.addEventListener('wheel',e=>{if(!e.ctrlKey&&!e.shiftKey)return;e.preventDefault();
zoom((e.deltaY||e.deltaX)>0?1.25:.8,e.offsetX/svg.clientWidth)},{passive:false});
svg.onkeydown=e=>{const move={ArrowLeft:-.2,ArrowRight:.2}[e.key],by={'+':.5,'-':2,'0':0}[e.key];
if(move!==undefined){x+=move*w;draw()}else if(by!==undefined)zoom(by,.5);else return;e.preventDefault()};
svg.onpointerdown=e=>{held=e.clientX};
svg.onpointermove=e=>{if(held===null)return;if(!svg.hasPointerCapture(e.pointerId))svg.setPointerCapture(e.pointerId);
x-=(e.clientX-held)*w/svg.clientWidth;held=e.clientX;draw()};
svg.onpointerup=svg.onpointercancel=()=>{held=null};
svg.onpointerover=e=>{const t=e.target.querySelector('title');if(t&&e.target!==svg)about.textContent=t.textContent};
addEventListener('resize',draw);draw()});
